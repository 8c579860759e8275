"""Every yaml composes, carries comments, and each of its keys arrives from the command line."""

import dataclasses
import re
from importlib.util import find_spec

import pytest
import yaml
from omegaconf import OmegaConf

from rlrun.config import Composer, check, read_composed, to_yaml
from rlrun.errors import ResourceError
from tests.installed import CONF, CONTINUOUS, PRESETS, env_of, module_of

GROUPS = sorted(p.name for p in CONF.iterdir() if p.is_dir() and p.name[0] != "_")
GROUPS.remove("hydra")
OPTIONS = [f"{g}={p.stem}" for g in GROUPS for p in sorted((CONF / g).glob("*.yaml"))]
NEEDS = {
    "env=gym": ["env.id=CartPole-v1"],
    **{f"env={name}": ["policy=random"] for name in CONTINUOUS},  # it acts in any space
    **{f"env=hidden_{name}": ["policy=random"] for name in ("battleship", "minesweeper")},
    "env=pettingzoo": ["env.id=pettingzoo:tests.env.zoo_example"],
    **{f"policy={p}": ["env=twostep"] for p in ("qmix", "vdn")},
    "agents=joint": ["env=twostep", "policy=random"],
    "agents=separate": ["env=twostep"],
    **{
        f"policy={p}": ["env=pendulum"]
        for p in ("sac", "td3", "ddpg", "rsac", "rtd3", "cql_sac", "tqc", "crossq")
    },
    "buffer=rollout": ["policy=ppo"],
    "env=atari": ["torso=nature_cnn"],
}
ENV_BASE = CONF / "_base/env.yaml"  # the base of every environment, which may change its values
IMAGES = (
    "torso=nature_cnn",
    "torso=small_cnn",
    "torso=image_and_vector",
)  # the default env has none


def flat(value, path=""):
    if isinstance(value, dict) and value:
        items = value.items()
        return {k: v for key, inner in items for k, v in flat(inner, f"{path}.{key}").items()}
    return {path.lstrip("."): value}


def bases(path):
    """The base yamls that a yaml starts from."""
    found = re.findall(r"^  - /(_base/\w+)@_here_$", path.read_text("utf-8"), re.M)
    return [CONF / f"{name}.yaml" for name in found]


def own_keys(path):
    return OmegaConf.to_container(OmegaConf.load(path), resolve=False)


def read(composer, *overrides):
    return flat(dataclasses.asdict(read_composed(composer.compose(composer.rewrite(overrides)))))


@pytest.mark.parametrize("words", ["policy=r2d2 env=bandit", "policy=sac env=pendulum"])
def test_a_stored_config_is_that_of_omegaconf(words):
    cfg = Composer().compose(
        [*words.split(), "run.stop_return=${env.stop_return}", "run.dir='a b'"]
    )
    values = OmegaConf.to_container(cfg, resolve=False)
    del values["hydra"]
    assert yaml.safe_load(to_yaml(cfg)) == yaml.safe_load(
        OmegaConf.to_yaml(OmegaConf.create(values))
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [("policy=r2d2", "prioritized ladder lstm 120"),
     ("buffer=uniform policy=r2d2", "uniform ladder lstm 120"),
     ("policy=r2d2 explore=schedule memory=gru", "prioritized schedule gru 120"),
     ("policy=drqn", "uniform ladder lstm 120"), ("policy=dqn", "uniform schedule none 128"),
     ("policy=dqn learner=default", "uniform schedule none 120"),
     ("policy=rainbow buffer=rank explore=boltzmann", "rank boltzmann none 32"),
     ("policy=rainbow", "prioritized none none 32"), ("policy=random", "uniform none none 120"),
     ("policy=qmix env=twostep", "uniform schedule gru 120"),
     ("policy=td3 buffer=rank", "rank none none 256"), ("policy=rsac", "uniform none lstm 120"),
     ("memory=gru policy=a2c", "rollout none gru None"),
     ("policy=pqn", "rollout schedule none None"),
     ("experiment=r2d2_paper", "prioritized ladder lstm 1"),
     ("experiment=diengine_r2d2_cartpole buffer=prioritized", "prioritized schedule lstm None")],
)  # fmt: skip
def test_defaults_that_come_with_a_policy_and_their_precedence(composer, line, expected):
    c = read_composed(composer.compose(line.split()))
    ratio = c.learner.replay_ratio
    found = (c.buffer.name, c.explore.name, c.memory.name, ratio and round(ratio))
    assert " ".join(map(str, found)) == expected


def test_command_line_beats_debug_beats_experiment_beats_policy(composer):
    paper = "experiment=r2d2_paper"
    assert read(composer, paper)["collector.num_envs"] == 256
    assert read(composer, paper, "debug=smoke")["collector.num_envs"] == 4
    found = read(composer, "collector.num_envs=3", paper, "debug=smoke")
    assert found["collector.num_envs"] == 3


def test_keys_of_the_environment_are_defaults_of_others(composer):
    """Random steps before learning: Fujimoto et al. 2018, section 6.1."""
    assert read(composer, "env=halfcheetah", "policy=td3")["learner.learning_starts"] == 10_000
    assert read(composer, "env=hopper", "policy=rsac")["learner.learning_starts"] == 1000
    given = ("env=halfcheetah", "policy=td3", "debug=profile")
    assert read(composer, *given)["learner.learning_starts"] == 1000
    found = read(composer, "env=lunarlander")
    assert (found["run.eval_every"], found["run.eval_episodes"]) == (50_000, 20)
    for policy in ("r2d2", "drqn", "qrdqn"):
        assert read(composer, f"policy={policy}", "env.gamma=0.5")["policy.gamma"] == 0.5
        given = (f"policy={policy}", "policy.gamma=0.25")
        assert read(composer, *given)["policy.gamma"] == 0.25
    assert read(composer, "env=halfcheetah", "policy=ppo")["policy.log_std_init"] == -0.7
    for policy in ("ppo", "pqn", "dqn"):
        for env, reads in (("multiarmed_bandit", True), ("cartpole", False)):
            found = read(composer, f"env={env}", f"policy={policy}")
            assert found["policy.prev_inputs"] == reads
    for key in ("total_steps", "stop_return"):
        assert found[f"run.{key}"] == found[f"env.{key}"]
        assert read(composer, f"env.{key}=77")[f"run.{key}"] == 77
    assert read(composer, "env=lunarlander", "run.eval_every=70")["run.eval_every"] == 70


# -- every key -------------------------------------------------------------------------------------

SPECIAL = """
device=cuda:1 | run.dir=some/where | run.total_steps=77 | run.eval_every=75 | run.eval_episodes=75
learner.learning_starts=7 | run.stop_return=12.5 | env.max_episode_steps=33 | env.stop_return=7
env.eval_every=17 | env.eval_episodes=17 | env.warmup_steps=17 | env.success=won
policy.learn_unroll_len=30
pipeline.weights_every=77 | pipeline.address='here:6379' | policy.gamma=0.5 | env.gamma=0.5
policy.amplitude=0.5 | policy.log_std_init=-0.5 | policy.prev_inputs=true
policy.target_update_every=7 policy.target_tau=null | policy.max_grad_norm=7 | policy.reward_scale=3
policy.target_tau=0.25 policy.target_update_every=null | policy.priority_eta=0.5
policy.reward_clip=1 | policy.choices=[[1,2],3] policy.script=cycle
policy.function=a.b:c policy.script=function
bonus.gamma=0.5 | policy.value_rescale_eps=0.125 policy.munchausen=null | policy.expectile=0.9
policy.td_clip=1 policy.distribution=none | policy.gae_lambda=0.5 | policy.trace_lambda=0.5
policy.munchausen=0.5 policy.double=false policy.value_rescale_eps=null policy.distribution=none
policy.trace_epsilon=0.5 | policy.batch_size=7 | policy.vtrace_lambda=0.5 | policy.q_lambda=0.5
collector.tiling=plain collector.overlap=0 collector.residual=last | collector.keep_info=[lives]
collector.overlap=2 collector.tiling=plain collector.residual=last | learner.threads=2
collector.residual=drop collector.tiling=plain collector.overlap=0 | logger.profile=7
collector.learned_overlap=1 collector.tiling=lossless | learner.target_thread=true
learner.update_per_collect=3 learner.replay_ratio=null | buffer.window_capacity=99
learner.replay_ratio=3.5 learner.update_per_collect=null | buffer.max_bytes=1000000
buffer.device=cuda:1 | buffer.mmap=some/where buffer.device=cpu | buffer.load=some/data
buffer.compress=true buffer.mmap=null | buffer.relabel=final | buffer.relabel_ratio=0.25
buffer.demos=some/data | buffer.demo_ratio=0.5 | logger.wandb=offline | logger.mlflow=sqlite:///a.db
memory.hidden=40 | memory.heads=8 | memory.r_max=0.75 | memory.max_phase=3 | buffer.alpha=0.25
env.id=Acrobot-v1 | env.instances=1 collector.num_envs=1 env.eval_kwargs={} | resume.allow=[seed]
run.video_every=9 | env.backend=sync | env.on_worker_failure=restart | learner.precision=bf16
run.checkpoint_every=9
learner.backend=torch | transport.weights=xorz | transport.copies=bf16 | pipeline.inference=central
transport.chunks=planes | policy.state_init=zero | policy.noisy_resample=chunk | policy.mixer=sum
policy.trace=retrace policy.munchausen=null policy.distribution=none policy.nstep=3
agents.team_reward=sum | agents.state=concat | policy.script=sine | torso.activation=tanh
policy.distribution=quantile policy.munchausen=null policy.td_clip=null | memory.activation=tanh
memory.recurrence=nonlinear | collector.unit=episode
buffer.initial_priority=td | logger.progress=plain
run.on_nan=rollback | policy.normalize_obs=false | policy.double=false policy.munchausen=null
policy.adam_beta1=0.25 | policy.norm_momentum=0.5 | env.not_learned_by=[ppo]
"""  # a key that needs more than any other value, with what it needs
OTHERS = {  # where that is the old one
    "policy.state_init": "stored",
    "policy.mixer": "monotonic",
    "policy.distribution": "none",
    "torso.activation": "elu",
    "policy.double": "true",
    "policy.prev_inputs": "false",
}
SCHEDULE = {"kind": "cosine", "start": 0.625, "end": 0.75, "over": 50.0}


def typed(text):
    """What a text of the command line is."""
    value = yaml.safe_load(text)
    tuples = lambda v: tuple(map(tuples, v)) if isinstance(v, list) else v  # noqa: E731
    return tuples(value)


def parse(group):
    key, text = group.split()[0].split("=", 1)
    return key, (text, typed(text), group.split()[1:])


CHANGES = dict(map(parse, re.split(r" \| |\n", SPECIAL.strip())))
WRAPPERS = ({"name": "delay_obs", "steps": 2}, {"name": "flatten_obs"})
CHANGES["env.wrappers"] = "[{name: delay_obs, steps: 2}, flatten_obs]", WRAPPERS, []
CHANGES["run.max_time"] = "1.5h", 5400.0, []


def change(key, old):
    """A value for ``key`` that is not ``old``: as text, as read, and what it needs besides."""
    leaf = key.rpartition(".")[2]
    if key in CHANGES:
        text, value, needs = CHANGES[key]
        if value == old and key in OTHERS:
            text, value = OTHERS[key], typed(OTHERS[key])
        return text, value, needs
    if leaf == "points":
        kind = key.replace("points", "kind=piecewise")
        return "[[0,0.25],[5,0.5]]", ((0.0, 0.25), (5.0, 0.5)), [kind]
    if leaf in SCHEDULE and isinstance(old, (int, float, str, type(None))):
        return str(SCHEDULE[leaf]), SCHEDULE[leaf], []
    if isinstance(old, bool):
        return str(not old).lower(), not old, []
    if isinstance(old, (int, float)):
        value = old + (1 if isinstance(old, int) else 0.5)
        return str(value), value, []
    if isinstance(old, list):
        return "[7,5]", (7, 5), []
    return ("0.5", 0.5, []) if old is None else ("other", "other", [])


def batches(option):
    """The changed keys of a yaml, apart where they need different things besides."""
    group, _, name = option.partition("=")
    path = CONF / group / f"{name}.yaml" if name else CONF / "config.yaml"
    values = own_keys(path)
    if group == "env":
        values = own_keys(ENV_BASE) | values
    for base in bases(path):
        values |= own_keys(base)
    values = {k: v for k, v in values.items() if k not in ("defaults", "hydra")}
    own = {k: v for k, v in flat(values, group if name else "").items() if v != {}}
    apart = {}
    for key, old in own.items():
        if not key.endswith(".name") and (option, key) != ("policy=crossq", "policy.target_tau"):
            text, new, needs = change(key, old)
            assert new != old, f"{key} is not changed"
            needs = [n for n in needs if not n.startswith("policy.") or n.split("=")[0] in own]
            apart.setdefault(" ".join(needs), {})[key] = text, new
    return apart


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_composes_and_passes_the_checks(composer, option):
    config = read_composed(composer.compose([option, *NEEDS.get(option, [])], sweep=True))
    group, _, name = option.partition("=")
    if group == "experiment":
        assert config.policy.name not in config.env.not_learned_by  # its own settings learn it
        group, name = "env", env_of(name) or ""
    module = module_of(name) if group == "env" and name in PRESETS else None
    if module is not None and find_spec(module) is None:
        with pytest.raises(ResourceError, match="pip install"):
            check(config)
    elif config.pipeline.name != "offline" and option not in IMAGES:  # that wants a dataset
        check(config)


OWN = [o for o in OPTIONS if o.split("=")[0] not in ("experiment", "debug", "env", "sweep")]


@pytest.mark.parametrize("option", ["config", "env=tmaze", *OWN])
def test_every_yaml_key_arrives(composer, option):
    chosen = [option] if "=" in option else []
    has = read(composer, *chosen).keys()
    for words, batch in batches(option).items():
        needs = [n for n in words.split() if {n.split("=")[0], n.split("=")[0] + ".start"} & has]
        typed_keys = (f"{key}={text}" for key, (text, _) in batch.items())
        found = read(composer, *chosen, *needs, *typed_keys)
        for key, (_, expected) in batch.items():
            assert found.get(f"{key}.start", found.get(key)) == expected, key


# -- sweeps ----------------------------------------------------------------------------------------

SWEEPS = [  # words of a sweep
    "policy=dqn env=bandit seed=range(2) policy.lr=1e-3,{kind:cosine,start:1e-3}",
    "policy=dqn,r2d2 env=bandit,tmaze",
    "env=tmaze env.length=5,6 memory=gru,lru",
    "env=tmaze env.kwargs.new=1,2 ~env.kwargs.length ~explore.epsilon",
    "experiment=r2d2_tmaze50,r2d2_repeat_previous policy.gamma=0.9",
    "policy={name:dqn} seed=1,2 hydra.launcher.workers=3 debug=smoke",
]


@pytest.mark.parametrize("words", SWEEPS)
def test_a_job_of_a_sweep_is_the_single_run_of_its_overrides(words):
    """To the byte, though files are read once for all jobs that choose the same options."""
    composer = Composer()
    cfg = composer.compose(composer.rewrite(words.split()), sweep=True)
    jobs = composer.jobs(cfg)
    assert len(jobs) >= 2
    for num, overrides in enumerate(jobs):
        job = composer.compose_job(cfg, overrides, num)
        assert to_yaml(job) == to_yaml(Composer().compose(overrides))
