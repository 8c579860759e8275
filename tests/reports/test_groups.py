"""Groups: what differs in the seed alone; labels; environments; repeats of a seed."""

import itertools

import numpy as np
import pytest

from rlrun.reports.groups import MISSING, differences, effects, explained, group_runs, labels_of
from rlrun.reports.runs import read_runs
from tests.reports.forge import forge, forge_seeds


def groups_of(path):
    return group_runs(read_runs([str(path)]))


def test_the_seed_alone_makes_no_group(tmp_path):
    """Neither do keys that say where to record."""
    forge(tmp_path / "0", seed=0, run__dir="x", logger__every=5)
    forge(tmp_path / "1", seed=1, run__dir="y", logger__every=9)
    forge(tmp_path / "2", seed=2, policy__lr=0.5)
    first, second = groups_of(tmp_path)
    assert (first.seeds, second.seeds) == ([0, 1], [2])
    assert (first.setting, second.setting) == ("lr=0.001", "lr=0.5")


def test_keys_that_change_no_number_make_no_group(tmp_path):
    """A later version may add or change them."""
    forge(tmp_path / "0", seed=0, env__not_learned_by=[])
    forge(tmp_path / "1", seed=1, env__log_std_init=0.0, env__not_learned_by=["dqn"])
    assert len(groups_of(tmp_path)) == 1
    forge(tmp_path / "0", seed=0, env__log_std_init=0.5)
    assert len(groups_of(tmp_path)) == 2


def test_runs_without_a_score_stay_in_their_group(tmp_path):
    forge_seeds(tmp_path, [1.0, 2.0])
    forge(tmp_path / "2", seed=2, status="failed")
    forge(tmp_path / "3", seed=3, status="running")
    (group,) = groups_of(tmp_path)
    assert [*group.scores] == [1.0, 2.0]
    assert [run.status for run in group.unscored] == ["failed", "running"]


def test_a_seed_counts_once(tmp_path):
    """Equal seeds are the same experiment: the run that was started last is the one."""
    forge(tmp_path / "a", seed=0, returns=(1.0,), record={"started": "2026-01-02"})
    forge(tmp_path / "b", seed=0, returns=(2.0,), record={"started": "2026-01-01"})
    (group,) = groups_of(tmp_path)
    assert [*group.scores] == [1.0]
    assert [run.name for run in group.repeats] == ["b"]


def test_fresh_seeds_of_a_search_are_a_group_of_their_own(tmp_path):
    """The scores that chose a setting are no sample of it."""
    forge(tmp_path / "runs/t0_s0", seed=0)
    forge(tmp_path / "runs/final_t0_s9", seed=9)
    (tmp_path / "search.json").write_text("{}")
    found = {group.setting: group.seeds for group in groups_of(tmp_path)}
    assert found == {"dqn (trial)": [0], "dqn": [9]}


def test_a_typed_default_is_the_default(tmp_path):
    """``${env.stop_return}`` is its value; over environments it is one setting."""
    forge(tmp_path / "a", env__stop_return=5.0, seed=0)
    forge(tmp_path / "b", env__stop_return=5.0, run__stop_return=5.0, seed=1)
    (group,) = groups_of(tmp_path)
    assert group.seeds == [0, 1]
    forge(tmp_path / "c", env__id="Acrobot-v1", env__stop_return=9.0)
    forge(tmp_path / "d", env__id="Acrobot-v1", env__stop_return=9.0, run__stop_return=9.0, seed=1)
    assert [group.seeds for group in groups_of(tmp_path)] == [[0, 1], [0, 1]]
    assert len({group.setting for group in groups_of(tmp_path)}) == 1
    forge(tmp_path / "e", env__stop_return=5.0, run__stop_return=9.0)
    assert len({group.setting for group in groups_of(tmp_path)}) == 2


def test_environments(tmp_path):
    """Keys of env that are constant within an environment belong to it, policy keys never do."""
    for i, length in enumerate((10, 20)):
        for policy in ("dqn", "r2d2"):
            config = {"env__id": "rlrun/TMaze-v0", "env__kwargs": {"length": length}}
            stop = {"env__stop_return": 0.5 + i}
            forge(tmp_path / f"{i}{policy}", **config, **stop, policy__name=policy)
    found = [(group.environment, group.setting) for group in groups_of(tmp_path)]
    assert found == [
        ("TMaze-v0 length=10", "dqn"),
        ("TMaze-v0 length=10", "r2d2"),
        ("TMaze-v0 length=20", "dqn"),
        ("TMaze-v0 length=20", "r2d2"),
    ]


def test_a_key_of_env_that_varies_within_an_environment_is_a_setting(tmp_path):
    for stack in (1, 4):
        for env in ("CartPole-v1", "Acrobot-v1"):
            forge(tmp_path / f"{env}{stack}", env__id=env, env__frame_stack=stack)
    found = {(group.environment, group.setting) for group in groups_of(tmp_path)}
    assert ("CartPole-v1", "frame_stack=4") in found
    assert len(found) == 4


POLICIES = [{"policy.name": "dqn", "policy.lr": 1}, {"policy.name": "r2d2", "policy.burnin": 4}]
REFERENCES = [{"policy.name": "dqn", "a": 5}, {"policy.name": "dqn", "a": "${env.a}"},
              {"policy.name": "ppo", "a": "${env.a}"}]  # fmt: skip


@pytest.mark.parametrize(
    ("configs", "given", "expected"),
    [([{"policy.name": "dqn"}], [], ["dqn"]), (POLICIES, [], ["dqn", "r2d2"]),
     ([{"a": 1, "b": 1}, {"a": 2, "b": 2}], ["b"], ["b=1", "b=2"]),
     ([{"b": 1, "policy.name": "dqn"}, {"b": 2, "policy.name": "r2d2"}], ["b", "policy.name"],
      ["dqn", "r2d2"]),
     ([{"a": "${env.a}", "b": 1}, {"a": 5, "b": 2}], [], ["b=1", "b=2"]),
     ([{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}], [],
      ["a=1 b=1", "a=1 b=2", "a=2 b=1"]),
     ([{"a": "${env.a}"}, {"a": 5}], [], ["a=env.a", "a=5"]),
     (REFERENCES, ["a"], ["dqn a=5", "dqn", "ppo"]), ([{"a": 1}, {}], [], ["a=1", f"a={MISSING}"]),
     ([{"a": None}, {"a": [1, "x"]}], [], ["a=null", 'a=[1, "x"]'])],
)  # fmt: skip
def test_labels(configs, given, expected):
    """The policy, then keys of the command line; what tells nothing more apart is left out.

    References to keys of the environment come last, and are not named where they need not be.
    """
    assert labels_of(configs, given) == expected


def test_long_labels_shorten_the_keys_not_the_values():
    """All of a factorial sweep can be told apart: the ablation of R2D2."""
    keys = ["policy.state_init", "policy.burnin_step", "policy.value_rescale_eps", "buffer.alpha"]
    values = itertools.product(["stored", "zero"], [4, 0], [1e-3, None], [0.6, 0])
    labels = labels_of([dict(zip(keys, row, strict=True)) for row in values])
    assert labels[0] == "state=stored burnin=4 value=0.001 alpha=0.6"
    assert labels[-1] == "state=zero burnin=0 value=null alpha=0"
    assert max(map(len, labels)) <= 60
    alike = [{"a.lr_start": "x" * 40 + i, "a.lr_end": "y" * 20 + j} for i, j in ("ab", "ba", "aa")]
    assert labels_of(alike)[2].startswith("lr_start=xx"), "two keys begin with lr"
    assert len({*labels_of([{"a": "x" * 100 + "1"}, {"a": "x" * 100 + "2"}])}) == 2


def test_differences():
    found = differences([{"a": 1, "b": 2, "d": 0}, {"a": 1, "b": 3, "c": True, "d": 0}])
    assert found == [("b", ["2", "3"]), ("c", [MISSING, "true"])]


def test_a_schedule_beside_a_constant_is_one_key(tmp_path):
    linear = {"kind": "linear", "start": 0.001, "end": 0.0, "over": None, "points": None}
    points = {"kind": "piecewise", "points": [[0, 0.001], [9, 0.1]]}
    for i, lr in enumerate((0.001, linear, {**linear, "over": 500}, points)):
        forge(tmp_path / str(i), policy__lr=lr)
    groups = groups_of(tmp_path)
    shown = ["0.001", "linear 0.001 to 0", "linear 0.001 to 0 over 500",
             "piecewise [[0, 0.001], [9, 0.1]]"]  # fmt: skip
    assert differences([group.keys for group in groups]) == [("policy.lr", shown)]
    assert [group.setting for group in groups] == [f"lr={text}" for text in shown]


def test_a_key_that_a_setting_lacks_is_not_in_its_name(tmp_path):
    forge(tmp_path / "0", env__kwargs={"size": 3})
    forge(tmp_path / "1", env__kwargs={})
    assert [group.environment for group in groups_of(tmp_path)] == [
        "CartPole-v1 size=3",
        "CartPole-v1",
    ]


# -- main effects, and the share of the variance of each -------------------------------------------


def test_shares_of_a_grid(tmp_path):
    """score = 2 a + b on a balanced grid: variances 4 and 1, shares 0.8 and 0.2; seeds no share."""
    for a, b, seed in itertools.product((-1, 1), (-1, 1), (0, 1)):
        path = tmp_path / f"{a}{b}{seed}"
        forge(path, seed=seed, policy__a=a, policy__b=b, returns=(2.0 * a + b,))
    first, second = effects(groups_of(tmp_path))
    assert (first.keys, second.keys) == (("policy.a",), ("policy.b",))
    assert (first.share, second.share) == (pytest.approx(0.8), pytest.approx(0.2))
    assert first.values == ["-1", "1"]
    assert {*first.levels[1].scores} == {1, 3}


def test_seeds_are_the_rest_and_keys_that_vary_together_are_one(tmp_path):
    for a, seed in itertools.product((0, 1), (0, 1)):
        forge(tmp_path / f"a/{a}{seed}", policy__a=a, seed=seed, returns=(float(seed),))
    (effect,) = effects(groups_of(tmp_path / "a"))
    assert effect.share == 0
    for i, name in enumerate(("dqn", "r2d2")):
        forge(tmp_path / f"b/{i}", policy__name=name, policy__lr=float(i), returns=(float(i),))
    (effect,) = effects(groups_of(tmp_path / "b"))
    assert (len(effect.keys), effect.share) == (2, 1)


def test_numbers_are_in_order(tmp_path):
    for value in (0.01, 0.001, 0.1, None):
        forge(tmp_path / str(value), policy__lr=value, returns=(1.0,))
    (effect,) = effects(groups_of(tmp_path))
    assert effect.values == ["0.001", "0.01", "0.1", "null"]
    np.testing.assert_array_equal(effect.numbers, [0.001, 0.01, 0.1, np.nan])


@pytest.mark.parametrize(("count", "levels"), [(8, 8), (10, 5)])
def test_more_than_eight_sampled_numbers_are_cut_into_ranges(tmp_path, count, levels):
    """Two sampled keys have a value for every setting, yet do not vary together."""
    for i in range(count):
        forge(tmp_path / str(i), policy__a=i, policy__b=(7 * i) % 10, returns=(float(i // 2),))
    found = {effect.keys: effect for effect in effects(groups_of(tmp_path))}
    if count > 8:
        first, second = found["policy.a",], found["policy.b",]
        names = [f"{i} to {i + 1}" for i in range(0, count, 2)]
        assert [level.name for level in first.levels] == names
        assert (first.share, second.share < 0.9) == (1, True)
    assert {len(effect.levels) for effect in found.values()} == {levels}


def test_the_share_is_0_of_equal_scores_and_at_most_1_at_any_magnitude():
    for value in (1.0, 97.1, 0.1, 0.2, 0.7):  # whose means are rounded
        assert explained([np.full(3, value), np.full(2, value)]) == 0
    for scale in (1e-200, 0.1, 97.1, 1e200):
        share = explained([np.full(3, scale), np.full(3, 3 * scale)])
        assert share == pytest.approx(1)
        assert share <= 1
