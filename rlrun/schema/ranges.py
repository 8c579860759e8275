"""Range checks shared by the dataclasses of this package."""


class Invalid(ValueError):
    """A field out of range; ``key`` is relative to the dataclass that raised it."""

    def __init__(self, key: str, value: object, text: str) -> None:
        super().__init__(f"{key} = {value}: {text}")
        self.key, self.value, self.text = key, value, text


def need(ok: bool, key: str, value: object, text: str) -> None:
    if not ok:
        raise Invalid(key, value, text)


def exactly_one(config: object, first: str, second: str) -> None:
    """Refuses two numbers and two nulls."""
    one, other = getattr(config, first), getattr(config, second)
    shown = "null" if other is None else other
    wrong = f"exactly one of {first} and {second} (= {shown}) is a number, the other null"
    fix = "give one of them a number" if one is None else "set the one you do not want to null"
    need((one is None) != (other is None), first, one, f"{wrong}; {fix}")


def positive(config: object, *keys: str) -> None:
    for key in keys:
        value = getattr(config, key)
        need(value is None or value > 0, key, value, "must be > 0")


def at_least(config: object, bound: float, *keys: str) -> None:
    for key in keys:
        value = getattr(config, key)
        need(value is None or value >= bound, key, value, f"must be >= {bound}")


def unit(config: object, *keys: str) -> None:
    for key in keys:
        value = getattr(config, key)
        need(value is None or 0 <= value <= 1, key, value, "must be within [0, 1]")
