"""Values of options of subcommands: texts that argparse turns into numbers, or refuses."""

import argparse
import math


def is_integer(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 15


def positive(text: str) -> int:
    if not is_integer(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not an integer >= 1 of at most 15 digits")
    return int(text)


def weights(text: str) -> str:
    if text not in ("final", "best") and not is_integer(text):
        raise argparse.ArgumentTypeError(f"{text} is not final, best or a number of env steps")
    return text


def seed(text: str) -> int:
    if not is_integer(text) or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not an integer within [0, 2^32)")
    return int(text)


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text[:40]} is not a number > 0")
    return number
