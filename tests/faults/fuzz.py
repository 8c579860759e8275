"""Random combinations of spaces, policies, memories and wrappers, each run for some 60 steps.

Every combination ends with 0, or with one line and 2, 3 or 4 (numbers whose squares float32 cannot
hold); never with 9, a traceback, a signal or a hang. The combination of a seed and a number is the
same on every machine.
"""

import contextlib
import io
import logging
import random
import tempfile
import warnings
from typing import NamedTuple

import numpy as np
from gymnasium import spaces

from rlrun.cli.main import main as rlrun
from tests.faults.fuzz_env import ACTIONS, ENDS, INFOS, OBS, REWARDS

SIZES = (
    "run.total_steps=64 run.eval_every=32 run.eval_episodes=1 run.checkpoint_every=32 "
    "eval.max_episode_steps=10 env.max_episode_steps=20 collector.num_envs=2 "
    "collector.n_sample=16 buffer.capacity=1000 logger.tensorboard=false logger.progress=off"
)
LEARNS = "learner.batch_size=4 learner.learning_starts=16"
REPLAYS = "learner.replay_ratio=2"  # few updates

FLAT = "policy.nstep=3 policy.reward_clip=1 policy.dueling=false policy.head_hidden=[8] buffer=rank"
WINDOWS = (
    "policy.burnin_step=0 policy.state_init=zero policy.learn_unroll_len=8 policy.prev_inputs=true"
)
DRAWN = (
    "buffer=prioritized buffer=uniform buffer.initial_priority=td env.frame_stack=2 "
    "collector.unit=episode"
)
VALUE = "explore=boltzmann explore=schedule explore=none bonus=rnd learner.precision=bf16"
CONTROL = "policy.nstep=3 policy.reward_clip=1 policy.td_clip=1 buffer=rank"
ON_POLICY = (
    "policy.normalize_obs=true policy.normalize_reward=true policy.prev_inputs=true bonus=rnd "
    "policy.separate_value=false policy.head_hidden=[8] policy.reward_clip=1 env.frame_stack=2"
)
ACTS = "collector.num_envs=1 learner.backend=torch"
PROCESSES = "env.backend=async pipeline=overlapped transport=coded"  # slow to start
FAMILIES = {  # policies: (switches that most of them have, whether a memory is an option)
    "r2d2 drqn r2d2_c51 r2d2_qr": (f"{FLAT} {WINDOWS} {DRAWN} {VALUE}", True),
    "dqn rainbow c51 qrdqn iqn mdqn cql": (f"{FLAT} {DRAWN} {VALUE}", False),
    "sac td3 ddpg crossq": (f"{CONTROL} {DRAWN}", False),
    "tqc": (f"{CONTROL.replace('td_clip=1', 'kappa=0')} {DRAWN}", False),
    "rsac rtd3": (f"{CONTROL} {WINDOWS} {DRAWN}", True),
    "ppo a2c impala": (ON_POLICY, True),
    "pqn": ("explore=schedule policy.dueling=false policy.prev_inputs=true", True),
    "random": ("", False),
}
DISCRETE = "r2d2 drqn r2d2_c51 r2d2_qr dqn rainbow c51 qrdqn iqn mdqn pqn ppo a2c impala random"
ON_POLICY_NAMES = "ppo a2c impala"
CONTROL_NAMES = "sac td3 ddpg rsac rtd3 tqc crossq"
REAL = f"{CONTROL_NAMES} ppo a2c impala random"
RARE = "cql cql_sac qmix vdn bc bc_recurrent iql scripted"
MEMORIES = (
    "lstm gru mingru lru ffm lmu rtu gtrxl indrnn bmru mlstm slstm gated_deltanet mamba2 none"
)
TORSOS = "mlp layer_norm tanh64 mlp_400_300"
IMAGES = {"image", "gray", "float_image", "image_and_vector"}
UNUSUAL = {"text", "sequence", "no_dict", "no_tuple", "flat_image", "tiny_image"}
REFUSED = {"tuple", "dict", "text", "box_int"}  # actions
BOUNDED = {
    name
    for name, space in ACTIONS.items()
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and np.isfinite(space.high).all()
}
WRAPPERS = {  # those that fit a kind of observation, actions of any kind
    "any": "{name: clip_reward, low: -1, high: 1}; {name: repeat_action, steps: 2}; "
    "{name: sticky_action, probability: 0.3}",
    "box": "time_obs; flatten_obs; {name: rescale_obs, low: 0, high: 1}; "
    "{name: cast_obs, dtype: float32}; {name: max_and_skip, steps: 2}; "
    "{name: delay_obs, steps: 2}; {name: flicker_obs, probability: 0.5}; "
    "{name: noise_obs, std: 0.1}; {name: mask_obs, keep: [0]}",
    "dict": "flatten_obs; {name: delay_obs, steps: 2}",
    "a": "{name: pick_obs, key: a}; {name: filter_obs, keys: [a]}",
    "discrete": "flatten_obs; {name: delay_obs, steps: 2}",
    "bounded": "{name: rescale_action, low: -1, high: 1}; {name: discretize_action, bins: 3}",
    "odd": "{name: cast_obs, dtype: uint8}; {name: mask_obs, keep: [7]}; {name: pick_obs, key: a}",
}


class Outcome(NamedTuple):
    code: int
    text: str  # stderr

    @property
    def fault(self) -> bool:
        lines = [line for line in self.text.splitlines() if line.startswith("rlrun: ")]
        refused = self.code in (2, 3, 4) and "Traceback" not in self.text and bool(lines)
        return not (refused or (self.code == 0 and "Traceback" not in self.text))


def fitting_wrappers(obs: str, action: str, masked: bool) -> list[str]:
    """The wrappers that fit the spaces; with one that may not in one of ten."""
    kinds = ["any"]
    if isinstance(OBS[obs], spaces.Dict):
        kinds += ["dict"] + ["a"] * (obs == "dict" and not masked)
    elif not masked and is_box(obs) and OBS[obs].shape:
        kinds.append("box")
    if action in BOUNDED and action != "box_empty":
        kinds.append("bounded")
    return "; ".join(WRAPPERS[kind] for kind in kinds).split("; ")


def fits(word: str, policy: str, obs: str, masked: bool) -> bool:
    """Return False for the switches that this policy or observation has not."""
    return not (
        (word == "pipeline=overlapped" and policy == "a2c")
        or (policy == "random" and not word.startswith(("env.", "collector.")))
        or (word == "env.frame_stack=2" and (masked or not is_box(obs)))
        or (word == "policy.normalize_obs=true" and (masked or not is_box(obs)))
    )


def is_box(obs: str) -> bool:
    return isinstance(OBS[obs], spaces.Box)


def combination(seed: int, number: int) -> list[str]:
    """The words of a command line: six of seven are meant to fit."""
    draw = random.Random(f"{seed}:{number}")
    odd = draw.random() < 0.15  # what follows may not fit
    obs = draw.choice([*OBS] if odd else [name for name in OBS if name not in UNUSUAL])
    action = draw.choice([*ACTIONS] if odd else [name for name in ACTIONS if name not in REFUSED])
    if action in ("box_empty", "binary"):
        policies = "random"
    elif action in BOUNDED:
        policies = REAL
    elif action.startswith("multi"):
        policies = f"{ON_POLICY_NAMES} random"
    elif action.startswith("box"):
        policies = ON_POLICY_NAMES
    else:
        policies = DISCRETE
    policy = draw.choice((f"{policies} {RARE}" if odd else policies).split())
    families = (f for names, f in FAMILIES.items() if policy in names.split())
    switches, memory = next(families, ("", True))
    masked = draw.random() < 0.2
    words = [
        f"policy={policy}",
        "env=gym",
        "env.id=tests.faults.fuzz_env:FuzzEnv-v0",
        f"+env.kwargs.obs={obs}",
        f"+env.kwargs.action={action}",
        f"+env.kwargs.end={draw.choice(ENDS)}",
        f"+env.kwargs.info={draw.choice(INFOS)}",
        f"+env.kwargs.reward={draw.choice(REWARDS)}",
        f"+env.kwargs.mask={str(masked).lower()}",
        f"seed={draw.randrange(100)}",
        *SIZES.split(),
        *(LEARNS if policy != "random" else "").split(),
    ]
    if policy not in (*ON_POLICY_NAMES.split(), "pqn", "random", "scripted"):
        words += REPLAYS.split()
    if draw.random() < 0.6 and (memory or odd):
        words.append(f"memory={draw.choice(MEMORIES.split())}")
    if policy != "random" and obs in IMAGES:
        words.append(f"torso={obs if obs == 'image_and_vector' else 'nature_cnn'}")
        if policy in CONTROL_NAMES.split():
            words.append("policy.head_hidden=[16]")
    elif policy != "random" and draw.random() < 0.3:
        torsos = TORSOS if policy in DISCRETE.split() else "mlp tanh64 mlp_400_300"
        words.append(f"torso={draw.choice(torsos.split())}")
    wrappers = [*WRAPPERS["odd"].split("; "), "mask_from_info"] if odd else []
    wrappers += fitting_wrappers(obs, action, masked)
    wrappers = draw.sample(wrappers, draw.choice((0, 0, 0, 1, 1, 2)))
    if wrappers:
        words.append(f"env.wrappers=[{', '.join(wrappers)}]")
    some = [] if draw.random() < 0.3 and not odd else f"{switches} {ACTS}".split()
    if draw.random() < 0.15:
        some += PROCESSES.split()
    if not odd:
        some = [word for word in some if fits(word, policy, obs, masked)]
    return words + draw.sample(some, min(len(some), draw.choice((1, 1, 2, 3))))


def run(seed: int, number: int) -> Outcome:
    """Run a combination in this process; whatever hangs or kills it does so here."""
    err, root = io.StringIO(), logging.getLogger()
    handlers = list(root.handlers)
    with (
        tempfile.TemporaryDirectory() as scratch,
        contextlib.redirect_stderr(err),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        code = rlrun([*combination(seed, number), f"run.dir={scratch}/run"])
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers = handlers
    return Outcome(code, err.getvalue())
