"""The presets that claim to be someone's settings, key by key."""

import dataclasses
from typing import Any

import pytest

from rlrun.config import Composer, read_composed
from tests.config.test_presets import flat

CONSTANT = {"kind": "constant", "over": None, "points": None}


def constant(key: str, value: float) -> dict[str, Any]:
    return {f"{key}.{k}": v for k, v in {**CONSTANT, "start": value, "end": value}.items()}


EPSILON = {  # DI-engine's decay; unused by a ladder of several environments
    "explore.epsilon.kind": "exponential",
    "explore.epsilon.start": 0.95,
    "explore.epsilon.end": 0.05,
    "explore.epsilon.over": 10_000.0,
    "explore.epsilon.points": None,
}
SAME = {
    "policy.name": "r2d2",
    "policy.nstep": 5,
    "policy.eta": 0.9,
    "policy.state_init": "stored",
    "policy.double": True,
    "policy.dueling": True,
    "policy.reward_scale": 1.0,
    "policy.reward_clip": None,
    "policy.td_clip": None,
    "policy.memory_lr": None,
    "policy.trace": "nstep",
    "policy.trace_lambda": 0.95,
    "policy.trace_epsilon": 0.01,
    "policy.distribution": "none",
    "policy.atoms": 51,
    "policy.v_min": -100.0,
    "policy.v_max": 100.0,
    "policy.kappa": 1.0,
    "policy.taus": 8,
    "policy.taus_target": 8,
    "policy.taus_act": 32,
    "policy.cosines": 64,
    "policy.noisy": None,
    "policy.noisy_resample": "step",
    "policy.munchausen": None,
    "policy.munchausen_tau": 0.03,
    "policy.munchausen_clip": -1.0,
    "explore.temperature": None,
    "torso.name": "mlp",
    "torso.activation": "relu",
    "torso.layer_norm": False,
    "memory.name": "lstm",
    "buffer.window_capacity": None,
    "buffer.max_bytes": None,
    "buffer.device": "cpu",
    "buffer.mmap": None,
    "buffer.compress": False,
    "buffer.load": None,
    "buffer.relabel": None,
    "buffer.relabel_ratio": 0.8,
    "buffer.demos": None,
    "buffer.demo_ratio": 0.25,
    "collector.trajectory": "episode",
    "collector.keep_info": (),
    "learner.batch_size": 64,
    "learner.threads": None,
    "learner.target_thread": None,
    "learner.backend": "auto",
    "learner.precision": "float32",
    "learner.cuda_graph": False,
    "learner.compile": False,
    **EPSILON,
}

PAPER = {  # Kapturowski et al. 2019, Table 2 and section 2.3; Horgan et al. 2018 for the ladder
    **SAME,
    "policy.learn_unroll_len": 85,
    "policy.burnin_step": 40,
    "policy.gamma": 0.997,
    **constant("policy.lr", 1e-4),
    "policy.adam_eps": 1e-3,
    "policy.grad_clip": 40.0,
    "policy.value_rescale_eps": 1e-3,
    "policy.target_update_every": 2500,
    "policy.target_tau": None,
    "policy.head_hidden": (512,),
    "policy.prev_inputs": True,
    "torso.hidden": (512,),
    "memory.hidden": 512,
    "memory.forget_bias": 1.0,
    "buffer.name": "prioritized",
    "buffer.capacity": 4_000_000,
    **constant("buffer.alpha", 0.9),
    **constant("buffer.beta", 0.6),
    "buffer.priority_eps": 1e-6,
    "buffer.weight_norm": "batch",
    "buffer.initial_priority": "td",
    "explore.name": "ladder",
    "explore.eps": 0.4,
    "explore.alpha": 7.0,
    "collector.num_envs": 256,
    "collector.n_sample": 5120,
    "collector.unit": "step",
    "collector.tiling": "lossless",
    "collector.learned_overlap": 40,
    "collector.residual": None,
    "collector.overlap": None,
    "learner.update_per_collect": None,
    "learner.replay_ratio": 1.0,
    "learner.learning_starts": 50_000,
}

DIENGINE = {  # DI-engine 0.5.3, its CartPole R2D2 config and the defaults of its policy
    **SAME,
    "policy.learn_unroll_len": 40,
    "policy.burnin_step": 2,
    "policy.gamma": 0.995,
    **constant("policy.lr", 5e-4),
    "policy.adam_eps": 1e-8,
    "policy.grad_clip": None,
    "policy.value_rescale_eps": 1e-2,
    "policy.target_update_every": None,
    "policy.target_tau": 0.001,
    "policy.head_hidden": (64,),
    "policy.prev_inputs": False,
    "torso.hidden": (128, 128, 64),
    "memory.hidden": 64,
    "memory.forget_bias": 0.0,
    "buffer.name": "uniform",
    "buffer.capacity": 100_000 * 42,
    "explore.name": "schedule",
    "explore.eps": None,
    "explore.alpha": None,
    "collector.num_envs": 8,
    "collector.n_sample": 32,
    "collector.unit": "window",
    "collector.tiling": "plain",
    "collector.learned_overlap": 0,
    "collector.residual": "last",
    "collector.overlap": 0,
    "learner.update_per_collect": 5,
    "learner.replay_ratio": None,
    "learner.learning_starts": 0,
    "run.eval_every": 6000,
    "run.eval_episodes": 8,
    "run.stop_value": 195.0,
    "run.stop_after": 2,
    "run.total_steps": 250_000,
    "env.id": "CartPole-v0",
}

PARTS = ("policy", "torso", "memory", "buffer", "explore", "collector", "learner")


@pytest.mark.parametrize(
    ("preset", "table"), [("r2d2_paper", PAPER), ("diengine_r2d2_cartpole", DIENGINE)]
)
def test_resolved_values(composer: Composer, preset: str, table: dict[str, Any]) -> None:
    config = read_composed(composer.compose([f"experiment={preset}"]))
    found = flat(dataclasses.asdict(config))
    parts = {k: v for k, v in found.items() if k.partition(".")[0] in PARTS}
    assert set(parts) <= set(table), "a key that the table does not speak of"
    for key, value in table.items():
        assert found[key] == value, key


def test_drqn_is_r2d2_without_stored_state_and_burn_in(composer: Composer) -> None:
    r2d2, drqn = (
        flat(dataclasses.asdict(read_composed(composer.compose([f"policy={name}"])).policy))
        for name in ("r2d2", "drqn")
    )
    differ = {k: drqn[k] for k in r2d2 if r2d2[k] != drqn[k]}
    assert differ == {"burnin_step": 0, "state_init": "zero"}


RAINBOW = {  # Hessel et al. 2018: all of them
    "distribution": "categorical", "atoms": 101, "double": True, "dueling": True, "nstep": 3,
    "noisy": 0.5, "munchausen": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "table"),
    [
        ("dqn", {"distribution": "none", "noisy": None, "munchausen": None}),
        ("c51", {"distribution": "categorical", "noisy": None, "munchausen": None}),
        ("qrdqn", {"distribution": "quantile", "noisy": None, "munchausen": None}),
        ("iqn", {"distribution": "implicit", "noisy": None, "munchausen": None}),
        ("mdqn", {"distribution": "none", "munchausen": 0.9, "double": False, "nstep": 1}),
        ("rainbow", RAINBOW),
        ("r2d2_c51", {"name": "r2d2", "distribution": "categorical", "state_init": "stored"}),
        (
            "r2d2_qr",
            {"name": "r2d2", "distribution": "quantile", "burnin_step": 4, "adam_eps": 3.125e-4},
        ),
    ],
)
def test_presets_are_switches_of_one_core(
    composer: Composer, policy: str, table: dict[str, Any]
) -> None:
    config = read_composed(composer.compose([f"policy={policy}"]))
    found = dataclasses.asdict(config.policy)
    assert found["name"] in ("dqn", "r2d2")
    for key, value in table.items():
        assert found[key] == value, key
    assert (config.explore.name == "none") == (found["noisy"] is not None)
    assert (config.buffer.name == "prioritized") == (policy in ("rainbow", "r2d2_c51", "r2d2_qr"))
