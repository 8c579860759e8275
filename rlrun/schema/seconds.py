"""Durations in a config: a number of seconds, or a number with a unit."""

import re

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Seconds(float):
    """A duration in seconds, written ``3600``, ``90m``, ``3.5h`` or ``2d``."""

    @classmethod
    def parse(cls, text: str) -> "Seconds":
        """Return the duration of a text. Raises: ValueError when it is none."""
        found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([smhd]?)", text.strip())
        if found is None:
            raise ValueError(f"{text} is not a duration")
        return cls(float(found[1]) * _UNITS[found[2]])
