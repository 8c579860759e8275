"""Probe of an environment before a run: its spaces, or one ConfigError (exit code 2)."""

import resource
import subprocess
import sys

import gymnasium as gym
import pytest
from gymnasium import spaces

from rlrun.env import probe, probe_agents
from rlrun.errors import ConfigError, ResourceError
from rlrun.schema import AgentsConfig
from tests.env import faulty  # noqa: F401  registers the test/ ids
from tests.env.presets import NAMES, config_of, preset
from tests.installed import CONTINUOUS, case

SHARED = AgentsConfig("shared", False, "mean", "env")


def refusal(config):
    with pytest.raises((ConfigError, ResourceError)) as caught:
        probe(config)
    assert caught.value.exit_code == (7 if "not installed" in str(caught.value) else 2)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", [case(name) for name in NAMES])
@pytest.mark.parametrize("backend", ["auto", "async"])
def test_every_preset_has_spaces(name, backend):
    obs, action = probe(preset(name, backend=backend))
    kind = spaces.Box if name in CONTINUOUS else spaces.Discrete
    assert isinstance(action, spaces.MultiDiscrete if name in TEAMS else kind)
    assert obs.shape is not None or isinstance(obs, spaces.Dict | spaces.Tuple)


TEAMS = ("relay", "twostep")  # probed as joint rows


SOLVED = {  # what the preset says of the published score, where it is one
    "acrobot": -100, "mountaincar": -110, "mountaincar_continuous": 90, "lunarlander": 200,
    "lunarlander_continuous": 200, "bipedalwalker": 300, "halfcheetah": 4800, "hopper": 3800,
    "ant": 6000, "cartpole": 475, "cartpole_v0": 195,
}  # fmt: skip


OTHERS = ("rlrun/", "MiniGrid-", "popgym-")  # ids that Gymnasium does not register itself


@pytest.mark.parametrize("name", [n for n in NAMES if not preset(n).id.startswith(OTHERS)])
def test_scores_and_lengths_are_those_of_the_registry(name):
    """No package is needed for that."""
    config = preset(name)
    spec = gym.spec(config.id)
    assert spec.reward_threshold == SOLVED.get(name)
    if name in SOLVED:
        assert config.stop_value >= SOLVED[name]
        assert f"solved at {SOLVED[name]}" in config.note
    assert f" {spec.max_episode_steps} steps" in config.note


@pytest.mark.parametrize(
    ("env_id", "near"),
    [
        ("CartPole-v2", "CartPole-v1"),
        ("cartpole", "CartPole-v1"),
        ("tmaze", "rlrun/TMaze-v0"),
        ("rlrun/Tmaze-v0", "rlrun/TMaze-v0"),
        ("Acrobat-v1", "Acrobot-v1"),
        ("rubbish", ""),
        ("", ""),
    ],
)
def test_an_unknown_id_names_the_closest(env_id, near):
    text = refusal(config_of(env_id))
    assert text.startswith(f"env.id = {env_id}: no such environment; closest: ")
    assert text.endswith("; see `rlrun list`")
    names = text.split("closest: ")[1].split(";")[0].split(", ")
    assert len(names) == 3
    assert not near or near in names


@pytest.mark.parametrize(
    ("env_id", "command", "module"),
    [
        ("LunarLander-v3", "[box2d]'", "Box2D"),
        ("Ant-v5", "[mujoco]'", "mujoco"),
        ("phys2d/CartPole-v1", "pip install 'gymnasium[jax]'", "jax"),
        ("ALE/Pong-v5", "[atari]'", "ale_py"),
        ("rlrun/Atari-v0", "[atari]'", "ale_py"),
        ("HalfCheetah-v5", "[mujoco]'", "mujoco"),
        ("MiniGrid-MemoryS7-v0", "[minigrid]'", "minigrid"),
        ("popgym-RepeatFirstEasy-v0", "[popgym]'", "popgym"),
    ],
)
def test_a_missing_package_names_the_command(env_id, command, module, monkeypatch):
    family = command.rpartition("[")[2].partition("]")[0]
    for loaded in [m for m in sys.modules if m.startswith(f"gymnasium.envs.{family}")]:
        monkeypatch.delitem(sys.modules, loaded)  # it has imported its package already
    monkeypatch.setitem(sys.modules, module, None)
    text = refusal(config_of(env_id))
    assert text.startswith(f"env.id = {env_id}: it needs a package that is not installed")
    assert text.endswith(command)


def test_modules_are_imported_only_where_they_exist():
    assert "module no_such_module cannot be imported" in refusal(config_of("no_such_module:A-v0"))
    obs, _ = probe(config_of("tests.env.faulty:test/Faulty-v0"))
    assert obs.shape == (3,)
    assert "no such environment" in refusal(config_of("tests.env.faulty:test/Fault-v0"))


@pytest.mark.parametrize("line", ["raise RuntimeError('a\\nb')", "raise SystemExit(0)", "1 +"])
def test_a_module_that_cannot_be_imported_is_named(line, tmp_path, monkeypatch):
    name = f"broken_{len(line)}"
    (tmp_path / f"{name}.py").write_text(line + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert f"importing {name} raised " in refusal(config_of(f"{name}:A-v0"))
    with pytest.raises(ConfigError, match=f"importing {name} raised ") as caught:
        probe_agents(config_of(f"pettingzoo:{name}"), SHARED)
    assert "\n" not in str(caught.value)


def test_names_that_are_no_modules():
    assert "importing .foo raised TypeError" in refusal(config_of(".foo:A-v0"))
    for env_id in ("pettingzoo:", "pettingzoo:.foo"):
        with pytest.raises(ConfigError, match="names no module"):
            probe_agents(config_of(env_id), SHARED)


def test_arguments_are_tried():
    text = refusal(preset("tmaze", kwargs={"lenght": 3}))
    assert text.startswith("env.kwargs = {")
    assert "'lenght'" in text
    assert "length = 0: must be an integer >= 1" in refusal(preset("tmaze", kwargs={"length": 0}))
    assert "length = 2.5: must be" in refusal(preset("tmaze", kwargs={"length": 2.5}))
    assert "k = 52: must be" in refusal(preset("repeat_previous", kwargs={"k": 52}))
    assert "end = later" in refusal(preset("counter", kwargs={"end": "later"}))
    assert "bits = 0: must be" in refusal(preset("bitflip", kwargs={"bits": 0}))
    assert "noise = 2" in refusal(preset("bandit", kwargs={"noise": 2}))


def test_evaluation_must_have_the_same_spaces():
    assert "env.eval_kwargs = {'n': 5}" in refusal(preset("identity", eval_kwargs={"n": 5}))
    assert "'oops'" in refusal(preset("identity", eval_kwargs={"oops": 5}))


def test_backends_and_spaces_that_cannot_serve():
    text = refusal(config_of("MountainCar-v0", backend="vector"))
    assert text.startswith("env.backend = vector: MountainCar-v0 has no native vector environment")
    assert "observation['text'] space is Text" in refusal(config_of("test/Words-v0"))
    assert "cannot be imported" in refusal(config_of("test/NoPackage-v0"))


def test_outdated_ids_are_fine():
    assert probe(config_of("CartPole-v0"))[1] == spaces.Discrete(2)


def test_probe_is_fast_and_needs_no_torch():
    code = (
        "import sys, rlrun.env; from rlrun.schema import EnvConfig; "
        "given = ('CartPole-v1', {}, {}, (), 'auto', None, 9.0, 'stop', 0, None, 1, 1.0, None); "
        "print(rlrun.env.probe(EnvConfig(*given, 1, 1, 1, None, ''))); "
        "assert 'torch' not in sys.modules and 'hydra' not in sys.modules"
    )
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
        seconds.append(spent)  # of the CPU: other tests run beside this one
    assert min(seconds) < 1.0  # 0.3 s on an idle machine
