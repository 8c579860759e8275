"""Values and names that no key takes, generated from the schema: one line each, naming the key.

The rows are read by the schema layer itself, which takes a millisecond; how a command line reaches
it, and what it leaves on the disk, is tested in ``tests/config/test_bad_input.py``.
"""

import copy
import types
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from omegaconf import OmegaConf

from rlrun.config import Composer, to_yaml
from rlrun.config.reader import field_types, read_config
from rlrun.errors import ConfigError
from rlrun.schema import ScheduleConfig, WrapperConfig

PRESETS = (
    "policy=r2d2 buffer=prioritized bonus=rnd transport=coded",
    "policy=dqn buffer=rank explore=boltzmann", "policy=sac env=pendulum",
    "policy=td3 env=pendulum", "policy=ppo", "policy=impala", "policy=pqn",
    "policy=bc pipeline=offline", "policy=cql_sac env=pendulum", "policy=iql pipeline=offline",
    "policy=qmix env=twostep agents=joint", "policy=scripted",
)  # fmt: skip
TEXTS: tuple[Any, ...] = ("x", [1], {"a": 1})
NUMBERS: tuple[Any, ...] = (float("nan"), float("inf"), -float("inf"), True)


def bad_values(kind, metadata):
    """Values that a field of this type and range does not take."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    optional = types.NoneType in options
    if not optional:
        yield None
    within = metadata.get("range")
    if within is not None:
        yield from (x for x in (within.low - 1, within.high + 1) if abs(x) < float("inf"))
    inner = [t for t in options if t is not types.NoneType]
    if any(t is str or t is ScheduleConfig or t is WrapperConfig for t in inner):
        return
    for one in inner:
        origin = get_origin(one)
        if one in (int, float):
            yield from (*TEXTS, *NUMBERS, 10**400, -(10**400))
        if one is int:
            yield from (0.5, 2**53 + 1, -(2**53) - 1)
        if one is bool:
            yield from (1, 0, "yes", [True], {})
        if origin is Literal:
            yield from ("nope", 3, [get_args(one)[0]], True)
        if origin is tuple and len(inner) == 1:
            yield from (7, "x", {"a": 1})
            if get_args(one)[0] is int:
                yield from (["x"], [0.5], [True], [[1]], [8] * 65 if within is not None else ["x"])


def rows(node, path):
    """(key, bad value) of every field of a config and of the configs in it."""
    for field in fields(node):
        key = f"{path}.{field.name}" if path else field.name
        value = getattr(node, field.name)
        if is_dataclass(value) and not isinstance(value, ScheduleConfig):
            yield from rows(value, key)
            yield from ((key, bad) for bad in ("x", 7, None, [1]))
        elif field.name != "name":
            kind = field_types(type(node))[field.name]
            yield from ((key, bad) for bad in bad_values(kind, field.metadata))


def with_value(values, key, value):
    changed = copy.deepcopy(values)
    *above, last = key.split(".")
    node = changed
    for name in above:
        node = node[name]
    node[last] = value
    return changed


@pytest.fixture(scope="module")
def configs():
    found = []
    for line in PRESETS:
        values = OmegaConf.to_container(
            OmegaConf.create(to_yaml(Composer().compose(line.split()))), resolve=True
        )
        assert isinstance(values, dict)
        found.append({str(k): v for k, v in values.items()})
    return found


def refused(values, key):
    with pytest.raises(ConfigError) as e:
        read_config(values)
    text = str(e.value)
    assert e.value.exit_code == 2
    assert "\n" not in text
    assert len(text) < 1500
    assert text.count(";") >= 1, f"{key}: what is allowed, what to do: {text}"
    return text


def test_values(configs):
    seen: set[str] = set()
    for values in configs:
        for key, bad in rows(read_config(values), ""):
            row = f"{key} {bad!r}"[:200]
            if row in seen:
                continue
            seen.add(row)
            text = refused(with_value(values, key, bad), key)
            assert text.startswith(key), f"{row}: {text}"
    assert len(seen) > 1000, len(seen)


def test_names(configs):
    """A key with a letter missing: the right one is among the guesses, but for very short ones."""
    total = guessed = 0
    seen: set[str] = set()
    for values in configs:
        for key, _ in rows(read_config(values), ""):
            group, _, name = key.rpartition(".")
            if key in seen or not group or len(name) < 4:
                continue
            seen.add(key)
            typo = name[: len(name) // 2] + name[len(name) // 2 + 1 :]
            full = f"{group}.{typo}"
            text = refused(with_value(values, full, 1), full)
            assert text.startswith(f"{full} = 1: unknown key"), text
            total += 1
            guessed += key in text
    assert total > 150, total
    assert guessed > 0.97 * total, (guessed, total)
