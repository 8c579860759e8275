"""Values of environment variables that a config read (``${oc.env:NAME}``), kept out of messages."""

import re

_read: dict[str, str] = {}  # value -> the interpolation that gave it
_SHORT = 6  # characters of a value that is replaced as a whole word only


def remember(value: str, name: str) -> None:
    """Replace ``value`` of the environment variable ``name`` in every later message."""
    for text in (value, " ".join(value.split())):
        if text:
            _read[text] = f"${{oc.env:{name}}}"


def redact(text: str) -> str:
    """Return the text with the names of environment variables in place of their values."""
    for value in sorted(_read, key=len, reverse=True):
        word = re.escape(value) if len(value) >= _SHORT else rf"(?<!\w){re.escape(value)}(?!\w)"
        text = re.sub(word, _read[value].replace("\\", r"\\"), text)
    return text
