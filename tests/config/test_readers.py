"""Which key reads which is metadata of the schema: it names keys and options that there are."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest

from rlrun.config.checks.unread_keys import check_typed_keys
from rlrun.config.reader import field_types
from rlrun.errors import ConfigError
from rlrun.schema import (
    BONUS_CONFIGS,
    BUFFER_CONFIGS,
    MEMORY_CONFIGS,
    POLICY_CONFIGS,
    Config,
    PolicyConfig,
)
from rlrun.schema.readers import NOUNS, Reader
from tests.compose import config

CLASSES: dict[str, list[Any]] = {
    **{
        name: [kind] for name, kind in field_types(Config).items() if dataclasses.is_dataclass(kind)
    },
    "policy": [*POLICY_CONFIGS.values()],
    "memory": [*MEMORY_CONFIGS.values()],
    "buffer": [*BUFFER_CONFIGS.values()],
    "bonus": [*BONUS_CONFIGS.values()],
}


def kinds(key: str) -> list[Any]:
    """The types of a key in every class of its group that has it; of a group, of its name."""
    group, _, name = key.partition(".")
    return [
        field_types(c)[name or "name"] for c in CLASSES[group] if (name or "name") in field_types(c)
    ]


def metadata(kind: str) -> Iterator[tuple[str, Any]]:
    for group, classes in CLASSES.items():
        for cls in classes:
            for field in dataclasses.fields(cls):
                if kind in field.metadata:
                    yield f"{group}.{field.name}", field.metadata[kind]


@pytest.mark.parametrize(("key", "other"), sorted(set(metadata("default_of"))))
def test_defaults_of_other_keys(key: str, other: str) -> None:
    """run.total_steps is ${env.total_steps} in the yaml, and follows it."""
    assert kinds(other)
    group, _, name = key.partition(".")
    run, policy = config(f"{key}=77"), "policy=sac"  # its learner takes warmup_steps
    part, last = other.split(".")
    values = [getattr(getattr(c, part), last) for c in (run, config(policy, f"{key}=77"))]
    assert 77 in values
    assert getattr(getattr(run, group), name) == 77


def test_readers_name_keys_and_their_options() -> None:
    found = dict(metadata("read_when"))
    assert len(found) > 30
    for key, reader in found.items():
        assert isinstance(reader, Reader)
        for condition in (c for every in reader.any_of for c in every):
            if condition.key in NOUNS:
                assert hasattr(PolicyConfig, condition.key.removeprefix("policy."))
                continue
            types = kinds(condition.key)
            assert types, f"{key}: {condition.key} is no key"
            options = {o for t in types if get_origin(t) is Literal for o in get_args(t)}
            assert not options or set(condition.values) <= options, f"{key}: {condition}"
            assert condition.values or reader.fix, f"{key}: says not what to set"


def test_a_reader_in_words() -> None:
    found = {key: str(reader) for key, reader in metadata("read_when")}
    assert found["policy.atoms"] == "policy.distribution=categorical or quantile"
    assert (
        found["explore.epsilon"] == "explore=schedule or explore=ladder with collector.num_envs=1"
    )
    assert found["memory.hidden"] == (
        "memory=lstm, gru, mingru, lru, ffm, rtu, lmu or gtrxl with a policy that has a memory"
    )
    assert found["buffer.demo_ratio"] == "buffer.demos"
    assert found["learner.batch_size"] == "a policy that learns"


def test_cloning_reads_the_learners_keys() -> None:
    """No reward changes what it learns, batches do."""
    check_typed_keys(config("policy=bc"), ["learner.batch_size=64", "learner.precision=bf16"])
    with pytest.raises(ConfigError, match="a policy that learns reads it"):
        check_typed_keys(config("policy=random"), ["learner.batch_size=64"])


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("policy.gamma=2", "policy.gamma"),
        ("torso.hidden=[64,x]", "torso.hidden[1]"),
        ("policy=dqn +policy.burnin_step=4", "policy.burnin_step"),
        ("~policy.lr", "policy.lr"),
    ],
)
def test_errors_carry_their_key(line: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(*line.split())
    assert caught.value.key == key
