"""Reading and writing of small fields in untrusted bytes: every read is checked."""

import struct

from rlrun.codec.errors import DamagedFrame

MAX_VARINT = 9  # bytes: values below 2**63


def damaged(what: str) -> DamagedFrame:
    """The error for bytes that no encoder wrote."""
    return DamagedFrame(f"codec.frame: {what}; bytes as an encoder wrote them; ask for it again")


def varint(value: int) -> bytes:
    """7 bits a byte, low bits first, the top bit set on all but the last."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """A position in bytes that cannot leave them."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes. Raises: DamagedFrame where there are fewer."""
        end = self.at + count
        if end > len(self.data):
            raise damaged(f"ends {end - len(self.data)} bytes too early")
        part = self.data[self.at : end]
        self.at = end
        return part

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def varint(self) -> int:
        """The next variable-length number, in its shortest form only."""
        value = 0
        for k in range(MAX_VARINT):
            byte = self.byte()
            value |= (byte & 127) << 7 * k
            if byte < 128:
                if byte == 0 and k > 0:
                    break
                return value
        raise damaged("a number is not in its shortest form")

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """The next numbers of that form."""
        return form.unpack(self.take(form.size))

    def done(self) -> None:
        """Raises: DamagedFrame if bytes are left."""
        if self.at != len(self.data):
            raise damaged(f"{len(self.data) - self.at} bytes too many")
