"""Checked reading and writing of small fields in untrusted bytes."""

import struct

from rlrun.codec.errors import DamagedFrame

MAX_VARINT = 9  # bytes; values are below 2**63


def damaged_frame(fault: str) -> DamagedFrame:
    """Return the error for bytes that no encoder writes."""
    return DamagedFrame(
        f"codec.frame: {fault}; bytes as an encoder writes them are needed; request the frame again"
    )


def encode_varint(value: int) -> bytes:
    """Encode with 7 bits per byte, low bits first; the top bit is set in all bytes but the last."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """A read position in bytes; reading beyond the end is an error."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.position = data, 0

    def read_bytes(self, count: int) -> memoryview:
        """Return the next ``count`` bytes. Raises: DamagedFrame if there are fewer."""
        end = self.position + count
        if end > len(self.data):
            raise damaged_frame(f"is {end - len(self.data)} bytes too short")
        part = self.data[self.position : end]
        self.position = end
        return part

    def read_byte(self) -> int:
        """Return the next byte."""
        return self.read_bytes(1)[0]

    def read_varint(self) -> int:
        """Return the next variable-length integer; only its shortest form is valid."""
        value = 0
        for k in range(MAX_VARINT):
            byte = self.read_byte()
            value |= (byte & 127) << 7 * k
            if byte < 128:
                if byte == 0 and k > 0:
                    break
                return value
        raise damaged_frame("an integer is not in its shortest form")

    def read_struct(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the next values of that format."""
        return layout.unpack(self.read_bytes(layout.size))

    def require_end(self) -> None:
        """Raise DamagedFrame if bytes are left."""
        if self.position != len(self.data):
            raise damaged_frame(f"{len(self.data) - self.position} bytes too many")
