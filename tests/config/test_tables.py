"""The presets that claim to be someone's settings, key by key."""

import dataclasses

import pytest

from rlrun.config import read_composed
from rlrun.errors import ConfigError
from tests.compose import config
from tests.config.test_presets import flat, read


def constant(value):
    return {"kind": "constant", "start": value, "end": value, "over": None, "points": None}


SAME = {
    "policy": {
        "name": "r2d2", "nstep": 5, "priority_eta": 0.9, "state_init": "stored", "double": True,
        "dueling": True, "reward_scale": 1.0, "reward_clip": None, "td_clip": None,
        "memory_lr": None, "trace": "nstep", "distribution": "none", "noisy": None,
        "munchausen": None,
    },
    "torso": {"name": "mlp", "activation": "relu", "layer_norm": False},
    "memory.name": "lstm",
    "buffer": {"window_capacity": None, "max_bytes": None, "relabel": None, "demos": None},
    "learner": {"batch_size": 64, "precision": "float32"},
}  # fmt: skip
PAPER = {  # Kapturowski et al. 2019, Table 2 and section 2.3; Horgan et al. 2018 for the ladder
    "policy": {
        "learn_unroll_len": 85, "burnin_step": 40, "gamma": 0.997, "lr": constant(1e-4),
        "adam_eps": 1e-3, "max_grad_norm": 40.0, "value_rescale_eps": 1e-3,
        "target_update_every": 2500, "target_tau": None, "head_hidden": (512,),
        "prev_inputs": True,
    },
    "torso.hidden": (512,),
    "memory": {"hidden": 512, "forget_bias": 1.0},
    "buffer": {
        "name": "prioritized", "capacity": 4_000_000, "alpha": constant(0.9),
        "beta": constant(0.6), "priority_eps": 1e-6,
        "initial_priority": "td",
    },
    "explore": {"name": "ladder", "base_epsilon": 0.4, "alpha": 7.0},
    "collector": {
        "num_envs": 256, "n_sample": 5120, "unit": "step", "tiling": "lossless",
        "learned_overlap": 40, "residual": None, "overlap": None,
    },
    "learner": {"update_per_collect": None, "replay_ratio": 1.0, "learning_starts": 50_000},
}  # fmt: skip


def test_resolved_values_of_the_paper(composer):
    found = read(composer, "experiment=r2d2_paper")
    for key, value in {**flat(SAME), **flat(PAPER)}.items():
        assert found[key] == value, key


def policy_of(composer, name):
    config = read_composed(composer.compose([f"policy={name}"]))
    return config, dataclasses.asdict(config.policy)


def test_drqn_is_r2d2_without_stored_state_and_burn_in(composer):
    r2d2, drqn = (policy_of(composer, name)[1] for name in ("r2d2", "drqn"))
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
def test_presets_are_switches_of_one_core(composer, policy, table):
    config, found = policy_of(composer, policy)
    assert found["name"] in ("dqn", "r2d2")
    assert table.items() <= found.items()
    assert (config.explore.name == "none") == (found["noisy"] is not None)
    assert (config.buffer.name == "prioritized") == (policy in ("rainbow", "r2d2_c51", "r2d2_qr"))


def test_errors_carry_their_key():
    for line, key in {"policy.gamma=2": "policy.gamma", "torso.hidden=[64,x]": "torso.hidden[1]",
                      "policy=dqn +policy.burnin_step=4": "policy.burnin_step",
                      "~policy.lr": "policy.lr"}.items():  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            config(*line.split())
        assert caught.value.key == key
