"""Probe of an environment before a run: its spaces, or one ConfigError (exit code 2)."""

import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlrun.env import probe
from rlrun.env.adapter import env_summary
from rlrun.env.contract import unsupported_space
from rlrun.errors import ConfigError
from rlrun.schema import AgentsConfig
from tests.env import faulty  # noqa: F401  registers the test/ ids
from tests.env.presets import NAMES, assert_names, config_of, preset, refusal

SHARED = AgentsConfig("shared", False, "mean", "env")
BOX = spaces.Box(0, 1, (2,), np.float32)
SOLVED = {  # what the preset says of the published score, where it is one
    "acrobot": -100, "mountaincar": -110, "mountaincar_continuous": 90, "lunarlander": 200,
    "lunarlander_continuous": 200, "bipedalwalker": 300, "halfcheetah": 4800, "hopper": 3800,
    "ant": 6000, "cartpole": 475, "cartpole_v0": 195,
    "mountaincar_continuous_novel": 90,
}  # fmt: skip
OTHERS = ("rlrun/", "MiniGrid-", "popgym-")  # ids that Gymnasium does not register itself


@pytest.mark.parametrize("name", [n for n in NAMES if not preset(n).id.startswith(OTHERS)])
def test_scores_and_lengths_are_those_of_the_registry(name):
    """No package is needed for that."""
    config, spec = preset(name), gym.spec(preset(name).id)
    assert spec.reward_threshold == SOLVED.get(name)
    assert name not in SOLVED or config.stop_return >= SOLVED[name]
    assert f" {spec.max_episode_steps} steps" in config.note


def test_an_unknown_id_names_the_closest():
    for env_id, near in {
        "CartPole-v2": "CartPole-v1",
        "cartpole": "CartPole-v1",
        "tmaze": "rlrun/TMaze-v0",
        "rlrun/Tmaze-v0": "rlrun/TMaze-v0",
        "rubbish": None,
        "": None,
    }.items():
        text = refusal(config_of(env_id), 2)
        assert text.startswith(f"env.id = {env_id}: ")
        names = text.split("closest: ")[1].split(";")[0].split(", ")
        assert len(names) == 3
        assert near is None or near in names


@pytest.mark.parametrize(
    ("env_id", "command", "module"),
    [
        ("LunarLander-v3", "[box2d]'", "Box2D"),
        ("Ant-v5", "[mujoco]'", "mujoco"),
        ("phys2d/CartPole-v1", "pip install 'gymnasium[jax]'", "jax"),
        ("ALE/Pong-v5", "[atari]'", "ale_py"),
        ("rlrun/Atari-v0", "[atari]'", "ale_py"),
        ("MiniGrid-MemoryS7-v0", "[minigrid]'", "minigrid"),
        ("popgym-RepeatFirstEasy-v0", "[popgym]'", "popgym"),
    ],
)
def test_a_missing_package_names_the_command(env_id, command, module, monkeypatch):
    family = command.rpartition("[")[2].partition("]")[0]
    for loaded in [m for m in sys.modules if m.startswith(f"gymnasium.envs.{family}")]:
        monkeypatch.delitem(sys.modules, loaded)  # it has imported its package already
    for registered in [i for i in gym.registry if i.lower().startswith(family)]:
        monkeypatch.delitem(gym.registry, registered)
    monkeypatch.setitem(sys.modules, module, None)
    text = refusal(config_of(env_id), 7)
    assert text.startswith(f"env.id = {env_id}: ")
    assert text.endswith(command)
    assert text.count("pip install") == 1


def test_a_module_names_the_ids_that_it_registers():
    with pytest.raises(ConfigError, match=r"set env\.id=tests\.env\.sick:sick/Healthy-v0"):
        probe(config_of("tests.env.sick:sick/Healty-v0"))


def test_parts_of_an_observation_are_listed():
    gym.register("test/Parts-v0", lambda: Parts(), disable_env_checker=True)
    assert env_summary(config_of("test/Parts-v0")) == "Discrete 3 + float32 [2] -> Discrete 2"


class Parts(gym.Env):
    observation_space = spaces.Tuple([spaces.Discrete(3), BOX])
    action_space = spaces.Discrete(2)


def test_modules_are_imported_only_where_they_exist():
    assert "no_such_module" in refusal(config_of("no_such_module:A-v0"), 2)
    assert probe(config_of("tests.env.faulty:test/Faulty-v0"))[0].shape == (3,)
    found = refusal(config_of("tests.env.faulty:test/Fault-v0"), 2)
    assert "env.id=tests.env.faulty:test/Faulty-v0" in found
    assert_names(refusal(config_of(".foo:A-v0"), 2), ".foo TypeError")


@pytest.mark.parametrize("line", ["raise RuntimeError('a\\nb')", "raise SystemExit(0)", "1 +"])
def test_a_module_that_cannot_be_imported_is_named(line, tmp_path, monkeypatch):
    name = f"broken_{len(line)}"
    (tmp_path / f"{name}.py").write_text(line + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert f"importing {name} " in refusal(config_of(f"{name}:A-v0"), 2)
    with pytest.raises(ConfigError, match=f"importing {name} ") as caught:
        probe(config_of(f"pettingzoo:{name}"), SHARED)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (preset("tmaze", kwargs={"lenght": 3}), "'lenght'"),
        (preset("tmaze", kwargs={"length": 0}), "length = 0: >= 1"),
        (preset("tmaze", kwargs={"length": 2.5}), "length = 2.5: "),
        (config_of("rlrun/TMaze-v0", kwargs={"length": 0}), "env.kwargs = {'length': 0}: "),
        (preset("repeat_previous", kwargs={"k": 52}), "k = 52: "),
        (preset("repeat_first", kwargs={"decks": 1.5}), "decks = 1.5"),
        (preset("count_recall", kwargs={"kind": "hearts"}), "kind = hearts"),
        (preset("position_only_cartpole", kwargs={"noise": -1.0}), "noise = -1"),
        (preset("counter", kwargs={"end": "later"}), "end = later"),
        (preset("bitflip", kwargs={"bits": 0}), "bits = 0: "),
        (preset("bandit", kwargs={"noise": 2}), "noise = 2"),
        (preset("chain", kwargs={"actions": 1}), "actions = 1"),
        (preset("battleship", kwargs={"ships": [5]}), "ships = 5: [1, 4"),
        (preset("battleship", kwargs={"ships": [4, 4, 1]}), "ships 16 cells"),
        (preset("tracking", kwargs={"lag": 10}), "lag = 10: [0, 9]"),
        (preset("bandit_continuous", kwargs={"low": 2}), "low = 2: high"),
        (preset("battleship", kwargs={"mask": 1}), "mask = 1: "),
        (preset("minesweeper", kwargs={"mines": 16}), "mines = 16: [1"),
        (preset("minesweeper", kwargs={"show": "all"}), "show = all: board, last"),
        (preset("identity", eval_kwargs={"n": 5}), "env.eval_kwargs = {'n': 5}"),
        (preset("identity", eval_kwargs={"oops": 5}), "env.eval_kwargs"),
        (config_of("CartPole-v1", kwargs={"max_episode_steps": 0}), "'max_episode_steps': 0"),
        (config_of("CartPole-v1", kwargs={"max_episode_steps": "4"}), "'max_episode_steps': '4'"),
        (config_of("Blackjack-v1", backend="vector"), "env.backend = vector: Blackjack-v1"),
        (config_of("test/Words-v0"), "observation['text'] Text"),
        (config_of("test/NoPackage-v0"), "not_installed_anywhere"),
        (config_of("Hopper-v2"), "env.id=Hopper-v5"),  # moved to another package
    ],
)
def test_what_cannot_be_made(config, text):
    assert_names(refusal(config, 2), text)


def test_parts_that_cannot_be_stored_are_named():
    for part in (spaces.Dict(), spaces.Tuple(()), spaces.Text(3), spaces.Sequence(BOX)):
        nested = spaces.Dict({"a": spaces.Tuple((BOX, part)), "b": BOX})
        found = unsupported_space(nested)
        assert "observation['a'][1] " in found
        assert str(part) in found
    assert unsupported_space(spaces.Dict({"a": spaces.Tuple((BOX, BOX))})) is None


def test_arguments_at_their_bounds():
    for name, kwargs in {
        "bandit": {"noise": 1},
        "tmaze": {"penalty": 0},
        "battleship": {"ships": [4, 4]},  # half of the cells
        "tracking": {"lag": 9},
        "chain": {"pattern": None},
    }.items():
        assert probe(preset(name, kwargs=kwargs))
