"""Policies by the product's factory, random windows and rollouts for them, what an update did."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlrun.nets.noise import MEAN_WEIGHTS as MEAN_WEIGHTS
from rlrun.nets.noise import NoiseGenerator
from rlrun.run.build import make_policy
from rlrun.run.plan import make_plan
from rlrun.types import Sample, Segment, Spec, Update, no_actions, torch_seed, tree_leaves, tree_map
from tests.compose import config, constant
from tests.compose import linear as linear

OBS = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
DISCRETE = Spec(OBS, gym.spaces.Discrete(5))
BOX = Spec(OBS, gym.spaces.Box(np.float32([-1, 0]), np.float32([3, 0.5])))
SPACES = {
    "box": gym.spaces.Box(-5, 5, (3,), np.float32),
    "double": gym.spaces.Box(-5, 5, (2, 2), np.float64),
    "bytes": gym.spaces.Box(0, 3, (4,), np.uint8),
    "discrete": gym.spaces.Discrete(4, start=2),
    "several": gym.spaces.MultiDiscrete([2, 3], start=[1, -1]),
    "dict": gym.spaces.Dict({"a": OBS, "b": gym.spaces.Tuple([gym.spaces.Discrete(3), OBS])}),
}
MASKED = Spec(
    gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(5), "observation": OBS}),
    gym.spaces.Discrete(5),
)
RECURRENT = {"learn_unroll_len": 7, "burnin_step": 3, "prev_inputs": True, "memory": "lstm"}
_CONTROL = {"pipeline": "serial", "env": "pendulum"}
_WORDS = {
    "sac": _CONTROL, "td3": _CONTROL, "ddpg": _CONTROL, "cql_sac": _CONTROL, "bc": _CONTROL,
    "tqc": _CONTROL, "crossq": _CONTROL, "iql": _CONTROL, "cql": {"pipeline": "serial"},
    "qmix": {"env": "relay"},
}  # fmt: skip


# Adam's first step with lr = eps = 1 moves a weight by g / (|g| + 1): ``gradients`` undoes that.
_SMALL = {
    "lr": constant(1.0), "actor_lr": constant(1.0), "adam_eps": 1.0, "max_grad_norm": None,
    "memory_lr": None, "gamma": 0.9, "nstep": 3, "learn_unroll_len": None, "burnin_step": 0,
    "head_hidden": (6,), "reward_scale": 2.0, "reward_clip": None, "td_clip": None,
    "target_update_every": None, "target_tau": 0.1, "atoms": 7, "v_min": -2.0, "v_max": 3.0,
    "kappa": 0.1, "num_quantiles": 4, "num_quantiles_target": 5, "num_quantiles_act": 6,
    "cosines": 8, "num_critics": 3, "dropped_quantiles": 1, "smoothing": 0.2,
    "smoothing_clip": 0.3, "temperature": 0.3, "temperature_auto": True, "target_entropy": None,
    "noise": constant(0.1), "actor_every": 1, "epochs": 1, "batch_size": 10**6,
    "normalize_advantage": False, "normalize_obs": False, "normalize_reward": False,
    "orthogonal_init": False, "segment_len": 1000, "value_clip": None, "clip_range": constant(0.2),
    "mixer_hidden": 8, "hyper_hidden": (6,), "value_rescale_eps": 1e-3, "dueling": True,
}  # fmt: skip
_OWN = {
    "r2d2": {"learn_unroll_len": 7, "burnin_step": 3},
    "qmix": {"learn_unroll_len": 6, "burnin_step": 2, "nstep": 2, "value_rescale_eps": None,
             "reward_scale": 1.0},
    "bc": {"learn_unroll_len": 2}, "crossq": {"target_tau": 1.0}, "cql": {"conservatism": 0.7},
    "iql": {"nstep": 2, "inverse_temperature": 2.0, "weight_clip": 3.0},
    "cql_sac": {"conservatism": 0.7, "gap_threshold": 0.5, "samples": 3,
                "entropy_in_target": False},
}  # fmt: skip
_MEMORY = {"r2d2": "lstm", "qmix": "gru"}


def plan_of(
    name: str, *, spec: Spec = DISCRETE, seed: int = 0, memory: str | None = None, hidden: int = 6,
    torso: Any = (8,), activation: str = "tanh", learner: dict[str, Any] | None = None,
    words: tuple[str, ...] = (), **changes: Any,
) -> Any:  # fmt: skip
    """The plan of a small config of ``policy=name``; ``changes``: keys of the policy."""
    given = (f"{key}={value}" for key, value in _WORDS.get(name, {}).items())
    c = config(f"policy={name}", *given, "learner.backend=torch", *words)
    memory = memory or _MEMORY.get(name, "none")
    cell = config("policy=r2d2", f"memory={memory}").memory
    cell = cell if memory == "none" else replace(cell, hidden=hidden)
    small = {k: v for k, v in _SMALL.items() if hasattr(c.policy, k)}
    policy = replace(c.policy, **(small | _OWN.get(name, {}) | changes))
    body = replace(c.torso, hidden=torso, activation=activation)
    c = replace(c, policy=policy, torso=body, memory=cell, seed=seed)
    c = replace(c, learner=replace(c.learner, **(learner or {})))
    return make_plan(replace(c, run=replace(c.run, total_steps=1000)), (spec.obs, spec.action, 1))


def build(name: str, **given: Any) -> Any:
    """The policy of ``plan_of``, made as a run makes it."""
    return make_policy(plan_of(name, **given))


def build_on(device: str, name: str, **learner: Any) -> Any:
    """``build`` on a GPU with keys of learner."""
    plan = plan_of(name, learner=learner)
    return make_policy(replace(plan, config=replace(plan.config, device=device)))


# -- inside a policy: the one place that knows where its networks lie ----------------------------


def nets(policy: Any) -> SimpleNamespace:
    """Networks of a policy, with its config and its window."""
    names = ("config", "window", "net", "target", "nets", "pi", "q", "pi_target", "q_target")
    return SimpleNamespace(**{n: getattr(policy, n) for n in names if hasattr(policy, n)})


def spread(policy: Any, seed: int = 0) -> Any:
    """The policy with target networks that differ from what they follow."""
    g, own = torch.Generator().manual_seed(seed), vars(nets(policy))
    with torch.no_grad():
        for net in (own[n] for n in ("target", "pi_target", "q_target") if n in own):
            for p in net.parameters():
                p += 0.1 * torch.randn(p.shape, generator=g)
    return policy


def parts_of(policy: Any, kind: str) -> dict[str, Any]:
    """The networks (``net``), or their targets, of a policy's state by the name of the part."""
    state = policy.state_dict().items()
    parts = {n: x[kind] for n, x in state if isinstance(x, dict) and "adam" in x and kind in x}
    return {"": parts["net"]} if [*parts] == ["net"] else parts


def weights(policy: Any) -> dict[str, torch.Tensor]:
    """Copies of everything that learns, by name."""
    found = {f"{n}.{k}": x for n, part in parts_of(policy, "net").items() for k, x in part.items()}
    buffers = ("learned", "noise", "mean", "square", "var", "count")
    return {k: x.clone() for k, x in found.items()
            if x.is_floating_point() and k.rpartition(".")[2] not in buffers}  # fmt: skip


def targets(policy: Any) -> dict[str, torch.Tensor]:
    """Copies of the target networks, with the names of ``weights``."""
    parts = parts_of(policy, "target").items()
    return {f"{n}.{k}": x.clone() for n, part in parts for k, x in part.items()}


def draws(policy: Any, *lead: int) -> Any:
    """Noise and quantile levels of the forward passes of the next update of DQN or R2D2."""
    return policy.noise(*lead)


def noise_at(policy: Any, number: int, *lead: int) -> Any:
    """``draws`` of update ``number``."""
    return NoiseGenerator(policy.net, policy.config, seed=0)(number, *lead)


def normal(policy_seed: int, number: int, *shape: int, uniform: bool = False) -> torch.Tensor:
    """Noise ``number`` of a policy for continuous actions: a function of seed and number."""
    own = torch.Generator().manual_seed((torch_seed(policy_seed, "noise") + number) % 2**63)
    return (torch.rand if uniform else torch.randn)(shape, generator=own)


def to_unit(space: Any, action: torch.Tensor) -> torch.Tensor:
    """Actions [..., n] of a box within [-1, 1]."""
    low, high = (torch.from_numpy(np.asarray(x)) for x in (space.low, space.high))
    return torch.atleast_1d(2 * (action - low) / (high - low) - 1)


# -- samples ---------------------------------------------------------------------------------------


def random_tree(space: Any, lead: tuple[int, ...], g: np.random.Generator) -> Any:
    """Members of a space [*lead, ...]."""
    if isinstance(space, gym.spaces.Dict):
        return {k: random_tree(s, lead, g) for k, s in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(random_tree(s, lead, g) for s in space.spaces)
    shape = (*lead, *(space.shape or ()))
    if isinstance(space, gym.spaces.Discrete):
        return space.start + g.integers(space.n, size=shape)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start + g.integers(space.nvec, size=shape)
    if isinstance(space, gym.spaces.MultiBinary):
        return (g.random(shape) < 0.6).astype(np.int8)
    if space.dtype == np.uint8:
        return g.integers(int(space.high.max()) + 1, size=shape).astype(np.uint8)
    if np.isfinite(space.low).all() and np.isfinite(space.high).all():
        return g.uniform(space.low, space.high, shape).astype(space.dtype)
    return g.normal(size=shape).astype(space.dtype)


def windows(policy: Any, spec: Spec = DISCRETE, *, seed: int = 0, env_steps: int = 0) -> Sample:
    """Windows that begin and end in every way, with random rows in them and in the padding.

    They end nowhere, terminated or truncated, early or late; burn-ins are whole, partial or filler.
    """
    w, g = policy.window, np.random.default_rng(seed)
    steps, bs = w.rows - 1, w.burnin
    ends = [(0, steps, ""), (0, steps, "terminated"), (0, steps, "truncated"),
            (0, max(steps - 1, 1), "truncated"), (bs, bs + 1, "terminated"),
            (bs, bs + 1, "truncated"), (bs, min(bs + 3, steps), "terminated"),
            (bs, bs + w.learned, ""), (bs // 2, steps, ""),
            (bs // 2, min(bs + 2, steps), "terminated")]  # fmt: skip
    count = len(ends)
    flags = {n: np.zeros((steps, count), bool) for n in ("valid", "terminated", "truncated")}
    first = np.zeros((steps + 1, count), bool)
    for column, (start, stop, end) in enumerate(ends):
        flags["valid"][start:stop, column] = True
        first[start, column] = start == bs
        if end:
            flags[end][stop - 1, column] = True
    action = random_tree(spec.action, (steps, count), g)
    obs = random_tree(spec.obs, (steps + 1, count), g)
    if isinstance(obs, dict) and "action_mask" in obs:  # what was done was allowed
        obs["action_mask"][..., 0] |= ~obs["action_mask"].any(-1)
        np.put_along_axis(obs["action_mask"][:-1], action[..., None], 1, -1)
    extras = {
        "prev_action": random_tree(spec.action, (count,), g),
        "prev_reward": g.normal(size=count).astype(np.float32),
        "log_prob": np.log(g.uniform(0.05, 1, (steps, count))).astype(np.float32),
    }
    state = tree_map(  # 12: a multiple of the numbers of agents
        lambda s: g.normal(size=s.shape).astype(s.dtype)[:count], policy.actor(12).initial_state()
    )
    segment = Segment(
        **tree_map(torch.from_numpy, {
            "obs": obs, "first": first, "action": action, "extras": extras, "state": state,
            "reward": g.normal(size=(steps, count)).astype(np.float32), **flags,
        }),
        partial=tuple({bs - bs // 2} - {0, bs}),
    )  # fmt: skip
    weight = torch.linspace(0.2, 1, count)
    return Sample(segment, weight, np.arange(count), env_steps)


def states_like(policy: Any, stream: Any) -> Segment:
    """The rows of a stream with random recurrent states of the policy's shape."""
    g, (steps, columns) = torch.Generator().manual_seed(0), stream.segment.reward.shape
    states = tree_map(
        lambda x: torch.randn(steps, columns, *x.shape[1:], generator=g),
        policy.actor(columns).initial_state(),
    )
    return replace(stream.segment, states=states, state=tree_map(lambda x: x[0], states))


def poisoned(sample: Sample, value: float = float("nan"), *, flags: bool = True) -> Sample:
    """``value`` and (in windows) wrong flags wherever no loss may look."""
    s, valid = sample.segment, sample.segment.valid
    none = torch.zeros_like(valid[:1])
    read = torch.cat([valid, none]) | torch.cat([none, valid & ~s.terminated])

    def spoil(x: torch.Tensor, kept: torch.Tensor, junk: float) -> torch.Tensor:
        junk = junk if x.is_floating_point() else 1
        return torch.where(kept.reshape(*kept.shape, *[1] * (x.ndim - 2)), x, x.new_tensor(junk))

    per_row = {k: x for k, x in s.extras.items() if k == "log_prob"}
    wild = replace(
        s,
        obs=tree_map(lambda x: spoil(x, read, value), s.obs),
        reward=spoil(s.reward, valid, value),
        action=spoil(s.action, valid, value),
        extras=s.extras | {k: spoil(x, valid, value) for k, x in per_row.items()},
        terminated=s.terminated | ~valid,
        first=s.first | ~read if flags else s.first,
    )
    return replace(sample, segment=wild)


def rollout(
    policy: Any, spec: Spec = DISCRETE, *, steps: int = 20, envs: int = 4, seed: int = 0,
    explore: Any = 0.0, before: int = 5,
) -> Sample:  # fmt: skip
    """Rows that an actor of the policy plays in an environment of noise, with all three flags.

    The rollout begins ``before`` rows after the first: within episodes. ``explore`` None: greedy.
    """
    g, actor = np.random.default_rng(seed), policy.actor(envs)
    eps = explore if explore is None or np.ndim(explore) else np.full(envs, explore, np.float32)
    state, first, ended = actor.initial_state(), np.ones(envs, bool), np.zeros(envs, bool)
    prev = [no_actions(spec.action, envs), np.zeros(envs, np.float32)]
    rows: list[dict[str, Any]] = []
    for _ in range(before + steps + 1):
        obs = random_tree(spec.obs, (envs,), g)
        act = actor.act(obs, first, *prev, state, explore=eps)
        paid, kind = g.normal(size=envs), g.random(envs)
        valid = ~ended
        row = {"obs": obs, "first": first, "action": act.action, "reward": np.where(valid, paid, 0),
               "terminated": valid & (kind < 0.1), "truncated": valid & (kind > 0.9),
               "valid": valid, "extras": act.extras, "states": state, "prev": prev}  # fmt: skip
        rows.append(row | {"reward": row["reward"].astype(np.float32)})
        state, prev = act.state, [act.action, rows[-1]["reward"]]
        first, ended = ended, row["terminated"] | row["truncated"]
    rows = rows[before:]

    def stacked(name: str, count: int) -> Any:
        return tree_map(lambda *x: torch.from_numpy(np.stack(x)), *(r[name] for r in rows[:count]))

    names = ("action", "reward", "terminated", "truncated", "valid", "extras", "states")
    fields = {n: stacked(n, steps) for n in names}
    early = {f"prev_{n}": torch.from_numpy(x)
             for n, x in zip(("action", "reward"), rows[0]["prev"], strict=True)}  # fmt: skip
    fields |= {"extras": fields["extras"] | early, "obs": stacked("obs", steps + 1)}
    fields |= {"first": stacked("first", steps + 1)}
    segment = Segment(**fields, state=tree_map(lambda x: x[0], fields["states"]))
    return Sample(segment, torch.ones(envs), np.arange(envs), 0)


def window(sample: Sample, index: Any) -> Sample:
    """The windows, or columns, ``index`` of a sample."""
    s, which = sample.segment, torch.as_tensor(index)
    timed = ("obs", "first", "action", "reward", "terminated", "truncated", "valid")
    cut = {n: tree_map(lambda x: x[:, which], getattr(s, n)) for n in timed}
    extras = {k: x[which] if k.startswith("prev_") else x[:, which] for k, x in s.extras.items()}
    state, states = (tree_map(f, x) for f, x in (
        (lambda x: x[which], s.state), (lambda x: x[:, which], s.states)))  # fmt: skip
    segment = replace(s, **cut, extras=extras, state=state, states=states)
    return Sample(segment, sample.weight[which], which.numpy(), sample.env_steps)


def stepped_q(own: SimpleNamespace, segment: Segment) -> torch.Tensor:
    """Q [T+1, B, A] by one step of net and memory after the other, from the stored state."""
    (net, c), state, out = (own.net, own.config), segment.state, []
    action, reward = segment.extras["prev_action"], segment.extras["prev_reward"]
    for t, first in enumerate(segment.first):
        state = tree_map(lambda s, f=first: torch.where(f[:, None], torch.zeros_like(s), s), state)
        paid = reward * c.reward_scale
        paid = paid if c.reward_clip is None else paid.clamp(-c.reward_clip, c.reward_clip)
        previous = net.encode_previous(action, paid)
        previous = torch.where(first[:, None], torch.zeros_like(previous), previous)
        obs = tree_map(lambda x, t=t: x[t], segment.obs)
        h, state = net.memory.step(net.inputs(obs, previous), state)
        out.append(net.head_outputs(h))
        if t < len(segment.action):
            action, reward = segment.action[t], segment.reward[t]
    return torch.stack(out)


# -- updates ---------------------------------------------------------------------------------------


def gradients(policy: Any, sample: Sample, *, optimiser: str = "adam") -> tuple[Update, dict]:
    """(update, the gradient of each weight), of a fresh policy with the rates of ``_SMALL``."""
    before = weights(policy)
    update = policy.update(sample)
    moved = {k: before[k] - x for k, x in weights(policy).items()}
    if optimiser == "radam":  # its first steps are lr * g
        return update, moved
    return update, {k: d / (1 - d.abs()) for k, d in moved.items()}


def assert_same_update(one: Any, other: Any, sample: Sample, sample_of_other: Sample) -> None:
    """Two policies with equal weights do bit for bit the same with samples of their own."""
    a, b = one.update(sample), other.update(sample_of_other)
    if a.priority is not None:
        assert torch.equal(a.priority, b.priority)
    for name, x in a.metrics.items():
        assert torch.equal(x, b.metrics[name]), name
        assert torch.isfinite(x), name
    assert_equal_states(one, other)


def assert_equal_states(one: Any, other: Any) -> None:
    pairs = tree_leaves(one.state_dict()), tree_leaves(other.state_dict())
    for x, y in zip(*pairs, strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


def assert_gradients(got: dict, want: dict, *, rtol: float = 1e-3, atol: float = 3e-6) -> None:
    """``want``: gradients of the weights that have one, by name; the others have none."""
    for name, grad in got.items():
        expected = want.get(name)
        expected = torch.zeros_like(grad) if expected is None else expected
        torch.testing.assert_close(grad, expected, rtol=rtol, atol=atol, msg=f"{name}")


def named_gradients(loss: torch.Tensor, prefix: str, net: torch.nn.Module) -> dict:
    """Gradients of ``loss`` over the parameters of ``net`` with the names of ``weights``."""
    named = dict(net.named_parameters())
    values = torch.autograd.grad(loss, [*named.values()], allow_unused=True, retain_graph=True)
    return {f"{prefix}.{k}": g for k, g in zip(named, values, strict=True)}


def act_once(policy: Any, spec: Spec = DISCRETE, *, envs: int = 64, explore: Any = None, seed=0,
             actor: Any = None) -> Any:  # fmt: skip
    """What an actor does in the first row of an episode with random observations."""
    actor = actor or policy.actor(envs)
    obs, first = random_tree(spec.obs, (envs,), np.random.default_rng(seed)), np.ones(envs, bool)
    eps = explore if explore is None or np.ndim(explore) else np.full(envs, explore, np.float32)
    none = no_actions(spec.action, envs), np.zeros(envs, np.float32)
    return actor.act(obs, first, *none, actor.initial_state(), explore=eps)
