"""Overrides: their parts, how they are divided, what copies of them are.

Private: an override that is parsed again, or carried along in copies, costs milliseconds alone.
"""

import copy
import json
import pickle

import pytest

from rlrun.config import Composer
from rlrun.errors import ConfigError
from rlrun.schema.override import Override, keys_of, read_overrides, split_node


@pytest.mark.parametrize(
    ("text", "name", "key", "value", "is_hydra"),
    [
        ("policy.lr=1e-4", "policy.lr", "policy.lr", "1e-4", False),
        ("++env.kwargs.goal={a: b=c}", "++env.kwargs.goal", "env.kwargs.goal", "{a: b=c}", False),
        ("~policy.lr", "~policy.lr", "policy.lr", "", False),
        ("+hydra.job.x=", "+hydra.job.x", "hydra.job.x", "", True),
        ("hydra/launcher=ray", "hydra/launcher", "hydra/launcher", "ray", True),
        ("hydraulics=1", "hydraulics", "hydraulics", "1", False),
    ],
)
def test_parts_of_an_override(text, name, key, value, is_hydra):
    override = Override(text)
    assert override == text
    parts = override.name, override.key, override.value, override.is_hydra
    assert parts == (name, key, value, is_hydra)


def test_overrides_are_divided_by_node():
    overrides = read_overrides(["seed=1", "seeds=auto", "+seeds.level=0.9", "seed.x=1"])
    own, rest = split_node(overrides, "seeds")
    assert (own, rest) == (["seeds=auto", "+seeds.level=0.9"], ["seed=1", "seed.x=1"])
    assert keys_of(own) == {"seeds", "seeds.level"}


def test_an_override_is_parsed_once_and_copied_without_what_was_parsed():
    first, second = Composer(), Composer()
    (lr,) = first.parse(["policy.lr=1e-4"])
    assert lr.parsed.value() == 1e-4
    assert first.parse(["policy.lr=1e-4"])[0].parsed is lr.parsed
    assert second.parse([lr])[0].parsed is lr.parsed
    for other in (copy.deepcopy(lr), pickle.loads(pickle.dumps(lr))):
        assert (other, other.key, other.parsed) == (lr, "policy.lr", None)
    assert json.loads(json.dumps([lr])) == ["policy.lr=1e-4"]
    with pytest.raises(ConfigError):
        first.parse([lr, "policy.lr=[1"])
