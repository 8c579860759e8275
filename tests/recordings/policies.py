"""Parameters after 20 updates on fixed samples, and the actions of acting rows, per policy."""

from itertools import chain
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from tests.recordings import samples, setup
from tests.recordings.fingerprint import Fingerprint, fingerprint

UPDATES, BATCHES, ENVS, ROWS = 20, 4, 10, 5  # ENVS x ROWS = 50 acting rows
VECTOR = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
SMALL = (
    "torso.hidden=[16,12]", "learner.threads=1", "learner.batch_size=96", "run.total_steps=4000",
)  # fmt: skip
DISCRETE, BOX = (
    gym.spaces.Discrete(3),
    gym.spaces.Box(np.array([-1, 0], np.float32), np.array([3, 0.5], np.float32)),
)
SPACES: dict[str, tuple[gym.Space[Any], gym.Space[Any]]] = {
    "discrete": (VECTOR, DISCRETE),
    "box": (VECTOR, BOX),
    "image": (gym.spaces.Box(0, 255, (2, 36, 36), np.uint8), DISCRETE),
    "mask": (
        gym.spaces.Dict(
            {"action_mask": gym.spaces.MultiBinary(3), "observation": VECTOR}
        ), DISCRETE,
    ),
    "agents": (
        gym.spaces.Dict(
            {"agent": gym.spaces.Box(0, 1, (2,), np.float32), "observation": VECTOR}
        ), DISCRETE,
    ),
    "team": setup.team_spaces(),
}  # fmt: skip
LINES = """
discrete policy=dqn
discrete policy=dqn policy.head_hidden=[8] policy.double=false policy.dueling=false
discrete policy=dqn policy.nstep=1 policy.td_clip=1 policy.reward_clip=1
discrete policy=dqn policy.target_tau=null policy.target_update_every=6 policy.grad_clip=null
discrete policy=dqn policy.noisy=0.5 policy.head_hidden=[8] explore=none
discrete policy=dqn policy.prev_inputs=true torso.activation=elu
discrete policy=qrdqn policy.head_hidden=[8] policy.atoms=7 policy.noisy=0.5
image policy=dqn torso=nature_cnn torso.hidden=[16]
mask policy=dqn
mask policy=mdqn
agents policy=dqn agents=separate
agents policy=dqn agents=shared
discrete policy=mdqn
discrete policy=c51 policy.atoms=11 policy.target_update_every=6
discrete policy=c51 policy.atoms=11 policy.double=false policy.dueling=false policy.head_hidden=[8]
discrete policy=qrdqn policy.atoms=7
discrete policy=qrdqn policy.atoms=7 policy.kappa=0 policy.double=false
discrete policy=iqn policy.head_hidden=[8] policy.cosines=8
discrete policy=iqn policy.munchausen=0.9 policy.cosines=8 policy.double=false
discrete policy=rainbow policy.atoms=11 policy.head_hidden=[8] policy.target_update_every=6
discrete policy=rainbow policy.atoms=11 policy.head_hidden=[8] policy.noisy_resample=chunk
discrete policy=r2d2
discrete policy=r2d2 memory=gru
discrete policy=r2d2 memory=mingru
discrete policy=r2d2 memory=none
discrete policy=r2d2 learner.target_thread=true policy.head_hidden=[8] policy.dueling=false
discrete policy=r2d2 policy.state_init=zero policy.prev_inputs=false policy.value_rescale_eps=null
discrete policy=r2d2 policy.noisy=0.5 policy.head_hidden=[8] explore=none
discrete policy=r2d2 policy.munchausen=0.9 policy.double=false policy.value_rescale_eps=null
discrete policy=r2d2 policy.distribution=implicit policy.head_hidden=[8] policy.cosines=8
image policy=r2d2 torso=nature_cnn torso.hidden=[16]
mask policy=r2d2
agents policy=r2d2 agents=separate
discrete policy=drqn
discrete policy=r2d2_c51 policy.atoms=11
discrete policy=r2d2_qr policy.atoms=7
team policy=qmix policy.mixer_hidden=4 policy.hyper_hidden=[6]
team policy=qmix policy.mixer_hidden=4 policy.hyper_hidden=[] memory=lstm
team policy=vdn policy.double=false policy.dueling=true
discrete policy=ppo policy.epochs=2
discrete policy=ppo policy.epochs=2 memory=lstm policy.prev_inputs=true policy.segment_len=8
discrete policy=ppo policy.epochs=2 memory=gru policy.segment_len=8
discrete policy=ppo policy.epochs=2 memory=mingru policy.segment_len=8 policy.separate_value=false
discrete policy=ppo policy.epochs=2 policy.separate_value=false policy.head_hidden=[8]
discrete policy=ppo policy.epochs=2 policy.value_clip=0.2 policy.target_kl=0.01
discrete policy=ppo policy.epochs=2 policy.normalize_obs=true policy.normalize_reward=true
box policy=ppo policy.epochs=2
box policy=ppo policy.epochs=2 memory=lstm policy.normalize_obs=true policy.segment_len=8
image policy=ppo policy.epochs=1 torso=nature_cnn torso.hidden=[16] policy.adam_eps=1e-2
mask policy=ppo policy.epochs=2
agents policy=ppo policy.epochs=2 agents=separate
discrete policy=a2c
discrete policy=a2c memory=lstm
box policy=a2c policy.normalize_advantage=true
discrete policy=impala
discrete policy=impala memory=lstm policy.prev_inputs=true
box policy=impala policy.vtrace_lambda=0.9
box policy=sac
box policy=sac learner.target_thread=true policy.actor_every=2 policy.head_hidden=[8]
box policy=sac policy.nstep=3 policy.temperature_auto=false
box policy=sac torso.activation=elu policy.grad_clip=1 policy.target_entropy=-1
box policy=rsac policy.head_hidden=[8]
box policy=rsac policy.head_hidden=[8] memory=gru policy.state_init=zero
box policy=td3
box policy=td3 policy.td_clip=1 torso.activation=tanh
box policy=td3 policy.target_tau=null policy.target_update_every=6
box policy=rtd3 policy.head_hidden=[8]
box policy=ddpg
box policy=ddpg learner.target_thread=true policy.grad_clip=1
box policy=ddpg memory=lstm policy.learn_unroll_len=6 policy.burnin_step=3 policy.head_hidden=[8]
discrete policy=bc policy.head_hidden=[8]
box policy=bc policy.head_hidden=[8]
mask policy=bc policy.head_hidden=[8]
discrete policy=bc_recurrent policy.head_hidden=[8]
box policy=bc_recurrent policy.head_hidden=[8] memory=gru
discrete policy=iql policy.head_hidden=[8]
box policy=iql policy.head_hidden=[8] policy.nstep=3
discrete policy=cql policy.head_hidden=[8]
discrete policy=cql policy.head_hidden=[8] policy.dueling=true policy.nstep=3
box policy=cql_sac policy.samples=3
box policy=cql_sac policy.samples=3 policy.gap_threshold=0.5 policy.entropy_in_target=true
"""
RECURRENT = ("r2d2", "drqn", "qmix", "vdn", "rsac", "rtd3", "bc_recurrent")
SEQUENCES = ("r2d2", "drqn", "rsac", "rtd3")
OFFLINE = ("bc", "iql", "cql")
MEMORIES = {"memory=lstm", "memory=gru", "memory=mingru"}
CASES = LINES.strip().splitlines()


def overrides(line: str) -> tuple[str, ...]:
    """The command line of a case, with networks and windows small enough for a test."""
    words = line.split()[1:]
    name, given = words[0].partition("=")[2], {w.partition("=")[0] for w in words}
    env = {"box": "pendulum", "team": "relay", "agents": "relay"}.get(line.split()[0], "cartpole")
    more = [f"env={env}"]
    if (name.startswith(RECURRENT) and "memory=none" not in words) or MEMORIES & {*words}:
        more.append("memory.hidden=8")
    if name.startswith(SEQUENCES):
        more.append("policy.learn_unroll_len=10")
    if name.startswith(OFFLINE):
        more.append("buffer.load=data")
    return (*words, *more, *(w for w in SMALL if w.partition("=")[0] not in given))


def compute(line: str) -> dict[str, list[Fingerprint]]:
    """Fingerprints of a case: weights, the rest of the state, what updates and acting return."""
    torch.set_num_threads(1)
    obs, action = SPACES[line.split()[0]]
    policy = setup.policy_of(overrides(line), obs, action)
    g = np.random.default_rng(17)
    if policy.window is None:
        actor = policy.actor(8)
        rows = [samples.rollout(obs, action, actor, 8, g) for _ in range(BATCHES)]
    else:
        zero = policy.actor(16).initial_state()
        rows = [samples.windows(obs, action, policy.window, zero, g) for _ in range(BATCHES)]
    told: dict[str, list[Any]] = {}
    for i in range(UPDATES):
        columns = rows[0]["reward"].shape[1]
        weight = np.ones(columns) if policy.window is None else g.uniform(0.3, 1, columns)
        given = setup.sample_of(dict(rows[i % BATCHES]), weight.astype(np.float32), 150 * i)
        update = policy.update(given)
        for name, x in (("priority", update.priority), *update.metrics.items()):
            if x is not None:
                told.setdefault(name, []).append(x.numpy().copy())
    weights = [x.numpy() for x in policy.weights().values()]
    state = [x.numpy() for x in leaves(policy.state_dict()) if x.numel() > 1]
    state += joined_moments(policy.state_dict())
    found = {
        "weights": weights,
        "state": state,
        "updates": [np.stack(x) for x in told.values()],
        "acting": acting(policy, obs, action, g),
    }
    out = {
        n: [fingerprint(x, 2 if n == "state" else 12) for x in each] for n, each in found.items()
    }
    known = {x[1] for x in out["weights"]}
    out["state"] = [x for x in out["state"] if x[1] not in known]
    return out


def leaves(tree: Any) -> list[torch.Tensor]:
    """The tensors of nested dicts and sequences."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    parts = tree.values() if isinstance(tree, dict) else tree
    return list(chain(*map(leaves, parts))) if isinstance(tree, dict | list | tuple) else []


def joined_moments(state: Any) -> list[np.ndarray]:
    """First and second moments of every Adam in one array each, as flat parameters store them."""
    if not isinstance(state, dict):
        parts = state if isinstance(state, list | tuple) else ()
        return [x for part in parts for x in joined_moments(part)]
    if {"mean", "square", "steps"} <= state.keys():
        both = ([x.reshape(-1) for x in state[name]] for name in ("mean", "square"))
        return [torch.cat(moments).numpy() for moments in both]
    return [x for part in state.values() for x in joined_moments(part)]


def acting(
    policy: Any, obs: gym.Space[Any], action: gym.Space[Any], g: np.random.Generator
) -> list[np.ndarray]:
    """Actions and extras of 50 explored and 50 greedy rows, and the recurrent state behind them."""
    actor, out = policy.actor(ENVS), []
    actor.refresh()
    for explore in (np.linspace(0, 0.6, ENVS).astype(np.float32), None):
        state, first = actor.initial_state(), np.ones(ENVS, bool)
        before, reward = np.zeros_like(samples.draw(action, (ENVS,), g)), np.zeros(ENVS, np.float32)
        steps = []
        for _ in range(ROWS):
            seen = samples.draw(obs, (ENVS,), g)
            act = actor.act(seen, first, before, reward, state, explore=explore)
            steps.append((act.action.copy(), *(x.copy() for x in act.extras.values())))
            state, before = act.state, act.action
            first = g.random(ENVS) < 0.2
            reward = g.normal(size=ENVS).astype(np.float32)
        out += [np.stack(x) for x in zip(*steps, strict=True)]
        out += arrays(state)
    return out


def arrays(tree: Any) -> list[np.ndarray]:
    """The arrays of nested tuples."""
    return list(chain(*map(arrays, tree))) if isinstance(tree, tuple) else [np.array(tree)]
