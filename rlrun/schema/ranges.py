"""Range checks shared by the dataclasses of this package."""


class Invalid(ValueError):
    """A field out of range; ``key`` is relative to the dataclass that raised it."""

    def __init__(self, key: str, value: object, text: str) -> None:
        super().__init__(f"{key} = {value}: {text}")
        self.key, self.value, self.text = key, value, text


def need(ok: bool, key: str, value: object, text: str) -> None:
    if not ok:
        raise Invalid(key, value, text)


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
