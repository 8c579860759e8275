"""Every yaml composes, carries comments, and each of its keys arrives from the command line."""

import dataclasses
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from rlrun.cli.list import list_lines
from rlrun.cli.yaml_keys import shipped
from rlrun.config import Composer, check, read_composed, to_yaml
from rlrun.errors import ResourceError
from rlrun.schema import POLICY_CONFIGS
from tests.installed import CONTINUOUS, PRESETS, env_of, module_of

CONF = shipped()
GROUPS = sorted(
    p.name for p in CONF.iterdir() if p.is_dir() and p.name[0] != "_" and p.name != "hydra"
)
OPTIONS = [f"{g}={p.stem}" for g in GROUPS for p in sorted((CONF / g).glob("*.yaml"))]
NEEDS: dict[str, list[str]] = {
    "env=gym": ["env.id=CartPole-v1"],
    **{f"env={name}": ["policy=random"] for name in CONTINUOUS},  # it acts in any space
    "env=pendulum": ["policy=random"],  # continuous actions
    "env=pettingzoo": ["env.id=pettingzoo:tests.env.zoo_example"],
    "policy=qmix": ["env=twostep"],
    "policy=vdn": ["env=twostep"],
    "agents=joint": ["env=twostep", "policy=random"],
    "agents=separate": ["env=twostep"],
    **{f"policy={p}": ["env=pendulum"] for p in ("sac", "td3", "ddpg", "rsac", "rtd3", "cql_sac")},
    "buffer=rollout": ["policy=ppo"],
    "env=atari": ["torso=nature_cnn"],
}


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        items = value.items()
        return {k: v for key, inner in items for k, v in flat(inner, f"{path}.{key}").items()}
    return {path.lstrip("."): value}


def bases(path: Path) -> list[Path]:
    """The base yamls that a yaml starts from."""
    found = re.findall(r"^  - /(_base/\w+)@_here_$", path.read_text("utf-8"), re.M)
    return [CONF / f"{name}.yaml" for name in found]


def own_keys(path: Path) -> dict[Any, Any]:
    cfg = OmegaConf.load(path)
    assert isinstance(cfg, DictConfig)
    values = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(values, dict)
    return values


def read(composer: Composer, *overrides: str) -> dict[str, Any]:
    config = read_composed(composer.compose(composer.rewrite(overrides)))
    return flat(dataclasses.asdict(config))


def test_the_groups_are_the_documented_ones() -> None:
    names = (
        "agents bonus buffer collector debug env experiment explore learner logger memory "
        "pipeline policy sweep torso transport"
    )
    assert " ".join(GROUPS) == names


@pytest.mark.parametrize("option", OPTIONS)
def test_composes_and_validates(composer: Composer, option: str) -> None:
    config = read_composed(composer.compose([option, *NEEDS.get(option, [])], sweep=True))
    offline = config.pipeline.name == "offline"  # wants a dataset: tests/test_offline.py
    group, _, name = option.partition("=")
    if group == "experiment":
        group, name = "env", env_of(name) or ""
    module = module_of(name) if group == "env" and name in PRESETS else None
    if module is not None and find_spec(module) is None:
        with pytest.raises(ResourceError, match=r"; install it: pip install \S+$"):
            check(config)
    elif not offline and option not in ("torso=nature_cnn", "torso=image_and_vector"):
        check(config)  # the default env has no images


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=lambda p: p.stem)
def test_every_key_has_a_comment(path: Path) -> None:
    lines = path.read_text().split("\nhydra:")[0].splitlines()
    start = 0
    if "defaults:" in lines:
        start = lines.index("defaults:") + 1
        while start < len(lines) and lines[start].startswith("  - "):
            start += 1
    for line in lines[start:]:
        if re.match(r" *\w+: +\S", line):
            assert re.search(r"  # \S", line), f"{path.name}: {line}"


BASES = [(b, path) for path in sorted(CONF.glob("*/*.yaml")) for b in bases(path)]


def test_every_base_is_used() -> None:
    assert {base for base, _ in BASES} == set(CONF.glob("_base/*.yaml"))
    assert len(BASES) == 8


@pytest.mark.parametrize(("base", "preset"), BASES, ids=lambda p: p.stem)
def test_the_schema_reads_every_base_key(base: Path, preset: Path) -> None:
    shared, own = own_keys(base), own_keys(preset)
    assert shared.keys() <= {f.name for f in dataclasses.fields(POLICY_CONFIGS[own["name"]])}
    assert not shared.keys() & own.keys(), "a key of the base stands once"


def test_a_base_is_no_option(composer: Composer) -> None:
    for base, _ in BASES:
        assert base.parent.name not in composer.groups()
        assert not [line for line in list_lines() if base.stem in line]


def test_quick_start(composer: Composer) -> None:
    config = read_composed(composer.compose(["policy=r2d2", "env=cartpole"]))
    assert (config.policy.name, config.buffer.name, config.explore.name, config.memory.name) == (
        "r2d2",
        "prioritized",
        "ladder",
        "lstm",
    )
    assert config.run.total_steps == config.env.total_steps
    assert config.run.stop_value == config.env.stop_value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("policy=r2d2", "prioritized ladder lstm 120"),
        ("policy=r2d2 buffer=uniform", "uniform ladder lstm 120"),
        ("buffer=uniform policy=r2d2", "uniform ladder lstm 120"),
        ("policy=r2d2 explore=schedule memory=gru", "prioritized schedule gru 120"),
        ("policy=drqn", "uniform ladder lstm 120"),
        ("policy=drqn buffer=prioritized", "prioritized ladder lstm 120"),
        ("policy=dqn", "uniform schedule none 64"),
        ("policy=dqn buffer=prioritized", "prioritized schedule none 64"),
        ("policy=dqn learner=default", "uniform schedule none 120"),
        ("policy=c51", "uniform schedule none 32"),
        ("policy=rainbow", "prioritized none none 32"),
        ("policy=rainbow buffer=rank explore=boltzmann", "rank boltzmann none 32"),
        ("policy=r2d2_qr", "prioritized ladder lstm 120"),
        ("policy=random", "uniform none none 120"),
        ("policy=qmix env=twostep", "uniform schedule gru 120"),
        ("policy=vdn env=twostep memory=lstm", "uniform schedule lstm 120"),
        ("policy=sac", "uniform none none 256"),
        ("policy=td3 buffer=rank", "rank none none 256"),
        ("policy=ddpg explore=schedule", "uniform schedule none 256"),
        ("policy=rsac", "uniform none lstm 120"),
        ("policy=rtd3 memory=gru", "uniform none gru 120"),
        ("policy=ppo", "rollout none none None"),
        ("policy=ppo memory=lstm torso=mlp", "rollout none lstm None"),
        ("memory=gru policy=a2c", "rollout none gru None"),
        ("policy=impala", "rollout none none None"),
        ("policy=pqn", "rollout schedule none None"),
        ("experiment=r2d2_paper", "prioritized ladder lstm 1"),
        ("experiment=diengine_r2d2_cartpole", "uniform schedule lstm None"),
        ("experiment=diengine_r2d2_cartpole buffer=prioritized", "prioritized schedule lstm None"),
        ("experiment=zoo_dqn_cartpole", "uniform schedule none None"),
    ],
)
def test_defaults_that_come_with_a_policy_and_their_precedence(
    composer: Composer, line: str, expected: str
) -> None:
    config = read_composed(composer.compose(line.split()))
    found = (
        config.buffer.name,
        config.explore.name,
        config.memory.name,
        config.learner.replay_ratio and round(config.learner.replay_ratio),
    )
    assert " ".join(map(str, found)) == expected


def test_command_line_beats_debug_beats_experiment_beats_policy(composer: Composer) -> None:
    paper = "experiment=r2d2_paper"
    assert read(composer, paper)["collector.num_envs"] == 256
    assert read(composer, paper, "debug=smoke")["collector.num_envs"] == 4
    found = read(composer, "collector.num_envs=3", paper, "debug=smoke")
    assert found["collector.num_envs"] == 3


@pytest.mark.parametrize("policy", ["ddpg", "td3", "sac", "rtd3", "rsac"])
def test_actor_critics_start_learning_at_the_environments_setting(
    composer: Composer, policy: str
) -> None:
    given = (f"policy={policy}", "env=halfcheetah")
    assert read(composer, *given)["learner.learning_starts"] == 10_000
    assert read(composer, *given, "debug=profile")["learner.learning_starts"] == 1000


SPECIAL: dict[str, tuple[str, Any, list[str]]] = {  # key -> (text, value, what it needs besides)
    "device": ("cuda:1", "cuda:1", []),
    "run.dir": ("some/where", "some/where", []),
    "run.total_steps": ("77", 77, []),
    "run.eval_every": ("75", 75, []),
    "learner.learning_starts": ("7", 7, []),
    "run.stop_value": ("12.5", 12.5, []),
    "env.max_episode_steps": ("33", 33, []),
    "env.stop_value": ("7", 7.0, []),
    "env.eval_every": ("17", 17, []),
    "env.warmup_steps": ("17", 17, []),
    "env.success": ("won", "won", []),
    "policy.learn_unroll_len": ("30", 30, []),
    "pipeline.max_lead": ("77", 77, []),
    "pipeline.address": ("'here:6379'", "here:6379", []),
    "policy.target_update_every": ("7", 7, ["policy.target_tau=null"]),
    "policy.target_tau": ("0.25", 0.25, ["policy.target_update_every=null"]),
    "policy.gamma": ("0.5", 0.5, []),
    "policy.choices": ("[[1,2],3]", ((1.0, 2.0), 3.0), ["policy.script=cycle"]),
    "policy.amplitude": ("0.5", 0.5, []),
    "policy.function": ("a.b:c", "a.b:c", ["policy.script=function"]),
    "bonus.gamma": ("0.5", 0.5, []),
    "policy.eta": ("0.5", 0.5, []),
    "policy.grad_clip": ("7", 7.0, []),
    "policy.value_rescale_eps": ("0.125", 0.125, ["policy.munchausen=null"]),
    "policy.reward_scale": ("3", 3.0, []),
    "policy.reward_clip": ("1", 1.0, []),
    "policy.td_clip": ("1", 1.0, ["policy.distribution=none"]),
    "policy.munchausen": (
        "0.5",
        0.5,
        [
            "policy.double=false",
            "policy.value_rescale_eps=null",
            "policy.distribution=none",
        ],
    ),
    "policy.gae_lambda": ("0.5", 0.5, []),
    "policy.trace_lambda": ("0.5", 0.5, []),
    "policy.trace_epsilon": ("0.5", 0.5, []),
    "policy.batch_size": ("7", 7, []),
    "policy.vtrace_lambda": ("0.5", 0.5, []),
    "policy.q_lambda": ("0.5", 0.5, []),
    "collector.tiling": ("plain", "plain", ["collector.overlap=0", "collector.residual=last"]),
    "collector.overlap": ("2", 2, ["collector.tiling=plain", "collector.residual=last"]),
    "collector.residual": ("drop", "drop", ["collector.tiling=plain", "collector.overlap=0"]),
    "collector.learned_overlap": ("1", 1, ["collector.tiling=lossless"]),
    "collector.keep_info": ("[lives]", ("lives",), []),
    "learner.update_per_collect": ("3", 3, ["learner.replay_ratio=null"]),
    "learner.replay_ratio": ("3.5", 3.5, ["learner.update_per_collect=null"]),
    "learner.threads": ("2", 2, []),
    "logger.profile": ("7", 7, []),
    "learner.target_thread": ("true", True, []),
    "buffer.window_capacity": ("99", 99, []),
    "buffer.max_bytes": ("1000000", 1_000_000, []),
    "buffer.device": ("cuda:1", "cuda:1", []),
    "buffer.mmap": ("some/where", "some/where", ["buffer.device=cpu"]),
    "buffer.compress": ("true", True, ["buffer.mmap=null"]),
    "buffer.load": ("some/data", "some/data", []),
    "buffer.relabel": ("final", "final", []),
    "buffer.relabel_ratio": ("0.25", 0.25, []),
    "buffer.demos": ("some/data", "some/data", []),
    "buffer.demo_ratio": ("0.5", 0.5, []),
    "logger.wandb": ("offline", "offline", []),
    "logger.mlflow": ("sqlite:///a.db", "sqlite:///a.db", []),
    "memory.hidden": ("40", 40, []),
    "memory.heads": ("8", 8, []),
    "memory.r_max": ("0.75", 0.75, []),
    "memory.max_phase": ("3", 3.0, []),
    "policy.expectile": ("0.9", 0.9, []),
    "buffer.alpha": ("0.25", 0.25, []),
    "env.id": ("Acrobot-v1", "Acrobot-v1", []),
    "env.instances": ("1", 1, ["collector.num_envs=1", "env.eval_kwargs={}"]),
    "run.max_time": ("1.5h", 5400.0, []),
    "run.video_every": ("9", 9, []),
    "resume.allow": ("[seed]", ("seed",), []),
    "env.wrappers": (
        "[{name: delay_obs, steps: 2}, flatten_obs]",
        ({"name": "delay_obs", "steps": 2}, {"name": "flatten_obs"}),
        [],
    ),
}
BESIDES = {  # what a key of any value needs besides
    "policy.double": ["policy.munchausen=null"],
    "policy.distribution": ["policy.munchausen=null", "policy.td_clip=null"],
    "policy.trace": ["policy.munchausen=null", "policy.distribution=none", "policy.nstep=3"],
}
NAMES = {  # the other options of the keys that hold one of a few words
    "env.backend": "sync",
    "env.on_worker_failure": "restart",
    "learner.precision": "bf16",
    "learner.backend": "torch",
    "transport.weights": "xor",
    "transport.copies": "bf16",
    "pipeline.inference": "central",
    "transport.chunks": "planes",
    "policy.state_init": "zero",
    "policy.noisy_resample": "chunk",
    "policy.mixer": "sum",
    "policy.trace": "retrace",
    "agents.team_reward": "sum",
    "agents.state": "concat",
    "policy.script": "sine",
    "policy.distribution": "quantile",
    "torso.activation": "tanh",
    "memory.activation": "tanh",
    "memory.recurrence": "nonlinear",
    "collector.unit": "episode",
    "collector.trajectory": "collect",
    "buffer.weight_norm": "buffer",
    "buffer.initial_priority": "td",
    "logger.progress": "plain",
    "run.on_nan": "rollback",
}
OTHERS = {  # where that is the old one
    "policy.state_init": "stored",
    "policy.mixer": "monotonic",
    "policy.distribution": "none",
    "torso.activation": "elu",
}
SCHEDULE = {"kind": "cosine", "start": 0.625, "end": 0.75, "over": 50.0}


def change(key: str, old: Any) -> tuple[str, Any, list[str]]:
    """A value for ``key`` that is not ``old``: as text, as read, and what it needs besides."""
    leaf = key.rpartition(".")[2]
    if key in SPECIAL:
        return SPECIAL[key]
    if key in NAMES:
        text = NAMES[key] if NAMES[key] != old else OTHERS.get(key, "stored")
        return text, text, BESIDES.get(key, [])
    if leaf == "points":
        kind = key.replace("points", "kind=piecewise")
        return "[[0,0.25],[5,0.5]]", ((0.0, 0.25), (5.0, 0.5)), [kind]
    if leaf in SCHEDULE and isinstance(old, (int, float, str, type(None))):
        return str(SCHEDULE[leaf]), SCHEDULE[leaf], []
    if old is None:
        return "0.5", 0.5, []
    if isinstance(old, bool):
        return str(not old).lower(), not old, BESIDES.get(key, [])
    if isinstance(old, int):
        return str(old + 1), old + 1, []
    if isinstance(old, float):
        return str(old + 0.5), old + 0.5, []
    if isinstance(old, list):
        return "[7,5]", (7, 5), []
    return "other", "other", []


def leaves(option: str) -> list[tuple[str, Any]]:
    group, _, name = option.partition("=")
    path = CONF / group / f"{name}.yaml" if name else CONF / "config.yaml"
    values = own_keys(path)
    for base in bases(path):
        values |= own_keys(base)
    for key in ("defaults", "hydra"):
        values.pop(key, None)
    prefix = "" if group in ("experiment", "debug", "config") else group
    return [
        (key, old)
        for key, old in flat(values, prefix).items()
        if not (key.endswith(".name") or old == {})
    ]


def batches(option: str) -> list[dict[str, tuple[str, Any, list[str]]]]:
    """The changed keys of a yaml, apart where they need different things besides."""
    apart: dict[str, dict[str, tuple[str, Any, list[str]]]] = {}
    own = {key for key, _ in leaves(option)}
    for key, old in leaves(option):
        text, new, needs = change(key, old)
        assert new != old, f"{key} is not changed"
        needs = [n for n in needs if not n.startswith("policy.") or n.split("=")[0] in own]
        apart.setdefault(" ".join(needs), {})[key] = (text, new, needs)
    return list(apart.values())


KEYS = [
    (option, batch)
    for option in ["config", *OPTIONS]
    if not option.startswith(("experiment", "debug", "env")) or option == "env=tmaze"
    for batch in batches(option)
]


@pytest.mark.parametrize(
    ("option", "batch"), KEYS, ids=lambda v: "+".join(v)[:60] if isinstance(v, dict) else v
)
def test_every_yaml_key_arrives(
    composer: Composer, option: str, batch: dict[str, tuple[str, Any, list[str]]]
) -> None:
    chosen = [option] if "=" in option else []
    needs = next(iter(batch.values()))[2]
    if needs:
        has = read(composer, *chosen).keys()
        names = [n.partition("=")[0] for n in needs]
        needs = [n for n, key in zip(needs, names, strict=True) if {key, f"{key}.start"} & has]
    found = read(composer, *chosen, *needs, *(f"{k}={text}" for k, (text, _, _) in batch.items()))
    for key, (_, expected, _) in batch.items():
        assert found.get(f"{key}.start", found.get(key)) == expected, key


@pytest.mark.parametrize(
    ("env", "policy", "rows"),
    [("halfcheetah", "td3", 10_000), ("ant", "sac", 10_000), ("hopper", "ddpg", 1000),
     ("pendulum", "sac", 1000)],
)  # fmt: skip
def test_random_steps_before_learning_are_the_environments(composer, env, policy, rows):
    """Fujimoto et al. 2018, section 6.1."""
    given = read(composer, f"env={env}", f"policy={policy}")
    assert given["learner.learning_starts"] == rows


@pytest.mark.parametrize(
    ("env", "steps"), [("cartpole", 2000), ("lunarlander", 20_000), ("atari", 250_000)]
)
def test_eval_every_is_the_environments_setting(composer, env, steps):
    """50 long episodes every 2000 steps took PPO on LunarLander 14 times as long as training."""
    assert read(composer, f"env={env}")["run.eval_every"] == steps
    assert read(composer, f"env={env}", "run.eval_every=70")["run.eval_every"] == 70


SWEEPS = [  # words of a sweep, how many different options its jobs choose
    ("policy=dqn env=bandit seed=range(2) policy.lr=1e-3,{kind:cosine,start:1e-3}", 1),
    ("policy=dqn,r2d2 env=bandit,tmaze seed=0,1", 4),
    ("env=tmaze env.length=5,6 memory=gru,lru", 2),
    ("env=tmaze env.kwargs.new=1,2 ~env.kwargs.length ~explore.epsilon", 1),
    ("experiment=r2d2_tmaze50,r2d2_repeat_previous policy.gamma=0.9,0.99", 2),
    ("sweep=lr_grid", 1),
    ("policy={name:dqn} seed=1,2 hydra.launcher.workers=3 debug=smoke", 1),
]


@pytest.mark.parametrize(("words", "choices"), SWEEPS, ids=[words for words, _ in SWEEPS])
def test_a_job_of_a_sweep_is_the_single_run_of_its_overrides(
    monkeypatch: pytest.MonkeyPatch, words: str, choices: int
) -> None:
    """To the byte, though files are read once for all jobs that choose the same options."""
    composer = Composer()
    loader: Any = composer.hydra.config_loader
    compose, composed = loader.load_sweep_config, []
    monkeypatch.setattr(loader, "load_sweep_config", lambda *a: composed.append(a) or compose(*a))
    cfg = composer.compose(composer.rewrite(words.split()), sweep=True)
    jobs = composer.jobs(cfg)
    for num, overrides in enumerate(jobs):
        job = composer.compose_job(cfg, overrides, num)
        whole = compose(cfg, overrides)
        whole.hydra.job.id, whole.hydra.job.num = str(num), num
        assert OmegaConf.to_yaml(job) == OmegaConf.to_yaml(whole)
        assert to_yaml(job) == to_yaml(composer.compose(overrides))
        text = OmegaConf.to_yaml(OmegaConf.masked_copy(whole, [k for k in whole if k != "hydra"]))
        assert to_yaml(job) == text
    assert len(jobs) >= 2
    assert len(composed) == choices
