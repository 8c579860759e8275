"""What does not fit together: every rule refuses a config, in one line with key, value and fix."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlrun.config import check, checks, read_composed, rules
from rlrun.config.checks import check_precision
from rlrun.errors import ConfigError, ResourceError, RlrunError
from rlrun.schema.override import read_overrides
from rlrun.schema.ranges import Ranged, Rule
from rlrun.spaces import JointSpace
from tests.compose import config
from tests.config.test_bad_input import read_lines

LINES = [*read_lines(Path(__file__).with_name("rule_lines.txt"))]
BOX, TWO = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2)
TEAM = JointSpace(BOX, BOX, 2)


def masked(mask):
    return spaces.Dict({"x": BOX, "action_mask": mask})


SPACES: list[tuple[str, Any, Any, str]] = [  # words, observations, actions, what the error holds
    ("policy=ppo", BOX, spaces.Box(-1, 1, (0,), np.float32), "env.id = .* no number"),
    ("policy=sac", BOX, spaces.Box(-3e38, 3e38, (1,), np.float32), "env.id = .* bounds"),
    ("policy=ppo", BOX, spaces.Box(0, 3, (2,), np.int64), "env.id = .* whole numbers"),
    ("policy=ppo", masked(spaces.MultiBinary(2)), spaces.MultiDiscrete([2, 2]), "action_mask"),
    ("policy=dqn", masked(spaces.MultiBinary(3)), TWO, r"shape \[3\].*\[2\], is allowed"),
    ("policy=dqn env.frame_stack=2", masked(spaces.MultiBinary(2)), TWO, "frame_stack = 2"),
    ("policy=qmix env=twostep", TEAM, spaces.MultiDiscrete([[2, 2], [3, 2]]), "one number each"),
]


@pytest.fixture
def fired(monkeypatch):
    """The rules that refused a config so far, by identity."""
    found, text = set(), Rule.text

    def record(rule, facts):
        found.add(id(rule))
        return text(rule, facts)

    monkeypatch.setattr(Rule, "text", record)
    return found


@pytest.fixture
def machine(monkeypatch):
    """Two CUDA devices, no optional packages, no LSTM in bf16, a dataset of 10 steps."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(checks, "cuda_devices", lambda: (2, ""))
    monkeypatch.setattr(rules, "find_spec", lambda name: None)
    monkeypatch.setattr(rules, "bf16_fault", lambda config: "this CPU cannot")
    found = checks.check_dataset
    lengths = lambda *given: [5, 5] if given[2] == "data" else found(*given)  # noqa: E731
    monkeypatch.setattr(checks, "check_dataset", lengths)


def all_rules():
    """(owner, rule) of the table and of every dataclass of a run's config."""
    kinds, waiting = set(), [Ranged]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        kinds |= {kind for kind in below if kind.__module__.startswith("rlrun.schema")}
    kinds -= {kind for kind in kinds if kind.__module__ == "rlrun.schema.studies"}
    classes = sorted(kinds, key=lambda kind: kind.__name__)
    own = ((kind.__name__, rule) for kind in classes for rule in vars(kind).get("rules", ()))
    tables = rules.ON_CONFIG, rules.ON_SPACES, rules.ON_DATASET, rules.AT_LAST, rules.PRECISION
    return [*own, *(("rlrun.config.rules", rule) for table in tables for rule in table)]


def refusal(composer, words):
    """The error of a command line's config."""
    try:
        c = read_composed(composer.compose(composer.rewrite(words)))
        check(c)
        check_precision(c)
    except RlrunError as e:
        return e
    return RlrunError("is not refused")


@pytest.mark.usefixtures("machine")
def test_every_rule_refuses_a_config(composer, fired):
    wrong = []
    for title, words, texts in LINES:
        error = refusal(composer, words)
        kind = ResourceError if "pip install" in texts or "bf16" in words[0] else ConfigError
        if type(error) is not kind or any(text not in str(error) for text in (*texts, ";")):
            wrong.append((title, words, texts, error))
        assert "\n" not in str(error)
    assert not wrong, wrong
    for words, obs, action, text in SPACES:
        facts = rules.Facts(config(*words.split()), spaces=(obs, action, 1))
        with pytest.raises(ConfigError, match=text):
            rules.require_all(rules.ON_SPACES, facts)
    idle = [(owner, rule.key, rule.wrong) for owner, rule in all_rules() if id(rule) not in fired]
    assert not idle, idle


OFFLINE = ("policy=dqn", "pipeline=offline", "learner=offline", "buffer.load=data")


@pytest.mark.parametrize(
    "word",
    [
        "explore=linear",
        "explore.epsilon.start=0.3",
        "transport=coded",
        "collector.n_sample=9",
        "collector.unit=window",
    ],
)
def test_a_key_of_collection_that_an_offline_run_is_given(word):
    typed = read_overrides([*OFFLINE, word])
    with pytest.raises(ConfigError, match=f"{word.replace('=', ' = ')}: "):
        checks.check_typed_keys([config(*OFFLINE, word)], typed)
    checks.check_typed_keys([config(*OFFLINE)], read_overrides(OFFLINE))
    checks.check_typed_keys([config("policy=dqn", word)], read_overrides([word]))


@pytest.mark.parametrize(
    ("words", "unread"),
    [
        (["policy=ppo", "policy.clip_range.end=0.05"], "policy.clip_range.end"),
        (["policy=ppo", "policy.clip_range.over=9"], "policy.clip_range.over"),
        (["policy=dqn", "policy.lr.points=[[0,1],[9,0]]"], "policy.lr.points"),
        (["policy=ppo", "policy.clip_range.end=0.05", "policy.clip_range.kind=linear"], None),
        (["policy=ppo", "policy.clip_range.start=0.05"], None),
    ],
)
def test_a_part_of_a_schedule_that_its_kind_does_not_read(words, unread):
    if unread is None:
        checks.check_typed_keys([config(*words)], read_overrides(words))
        return
    with pytest.raises(ConfigError, match=rf"{unread} = .*kind="):
        checks.check_typed_keys([config(*words)], read_overrides(words))
