"""The floor: the R2D2 update a user would write by hand for one fixed shape, in bare torch, and
rlrun's side of it: policy, replay, prepared sample.

The same maths as ``R2D2.update`` on windows that are full up to their last transition: burn-in
without gradient, one unroll per network, previous action and reward as inputs, double Q, dueling,
value rescaling, n-step targets, eta-mixed priorities, gradient clipping, Adam, soft target. No
masks, no config, no metrics: what those cost rlrun is what the ratio shows.
"""

import copy
from dataclasses import dataclass, replace
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.benchmarks import product
from tests.benchmarks.product import R2D2, Replay, Sample, Segment
from tests.buffer.make import make_replay as make_table_replay
from tests.compose import config

ACTIONS, GAMMA, ETA, RESCALE_EPS = 2, 0.997, 0.9, 1e-3
LR, ADAM_EPS, CLIP, THETA = 5e-4, 1e-3, 40.0, 1e-3


@dataclass(frozen=True)
class Shape:
    """Layer sizes and the window of an update."""

    name: str
    obs: int
    torso: tuple[int, ...]
    lstm: int
    head: tuple[int, ...]
    batch: int
    burnin: int
    unroll: int  # learned positions and the n looked at
    nstep: int


@dataclass(frozen=True)
class Batch:
    """A batch as a hand-written learner keeps it: plain time-major tensors, [S, B] or [S-1, B]."""

    obs: Tensor  # [S, B, O]
    action: Tensor  # [S-1, B] int64
    reward: Tensor  # [S-1, B]
    alive: Tensor  # [S-1, B] float, 0 where the step terminated
    prev_action: Tensor  # [B] of the row before the window
    prev_reward: Tensor  # [B]
    state: tuple[Tensor, Tensor]  # [1, B, H] each
    weight: Tensor  # [B]


def plain(sample: Sample) -> Batch:
    """The batch of a sample whose windows have no padding and no episode's first row."""
    s = sample.segment
    masked = ~s.valid.all() | s.first.any() | (s.terminated | s.truncated)[:-1].any()
    assert not masked, "the floor has no masks"
    return Batch(
        obs=s.obs,
        action=s.action,
        reward=s.reward,
        alive=(~s.terminated).float(),
        prev_action=s.extras["prev_action"],
        prev_reward=s.extras["prev_reward"],
        state=(s.state[0].unsqueeze(0), s.state[1].unsqueeze(0)),
        weight=sample.weight,
    )


class Net(nn.Module):
    """Encoder, LSTM on features + previous action and reward, dueling heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.encoder = _layers([shape.obs, *shape.torso], last=True)
        self.lstm = nn.LSTM(shape.torso[-1] + ACTIONS + 1, shape.lstm)
        self.advantage = _layers([shape.lstm, *shape.head, ACTIONS], last=False)
        self.value = _layers([shape.lstm, *shape.head, 1], last=False)

    def unroll(self, x: Tensor, previous: Tensor, state: tuple[Tensor, Tensor]) -> Tensor:
        h, _ = self.lstm(torch.cat([self.encoder(x), previous], -1), state)
        a = self.advantage(h)
        q: Tensor = self.value(h) + a - a.mean(-1, keepdim=True)
        return q

    def warm(
        self, x: Tensor, previous: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The state behind the burn-in rows."""
        if not len(x):
            return state
        _, state = self.lstm(torch.cat([self.encoder(x), previous], -1), state)
        return state


def _layers(sizes: list[int], *, last: bool) -> nn.Sequential:
    out: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        out += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*(out if last else out[:-1]))


class Floor:
    """Networks, optimiser and one method: ``update``."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.net = Net(shape)
        self.target = copy.deepcopy(self.net).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.net.parameters(), LR, eps=ADAM_EPS, fused=True)
        self.online_list = list(self.net.parameters())
        self.target_list = list(self.target.parameters())

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.online_list)

    def loss(self, b: Batch) -> tuple[Tensor, Tensor]:
        """Loss and priorities [B]."""
        bs, n = self.shape.burnin, self.shape.nstep
        learned = self.shape.unroll - n
        with torch.no_grad():
            action = torch.cat([b.prev_action.unsqueeze(0), b.action])
            reward = torch.cat([b.prev_reward.unsqueeze(0), b.reward])
            previous = torch.cat([F.one_hot(action, ACTIONS).float(), reward.unsqueeze(-1)], -1)
            state = self.net.warm(b.obs[:bs], previous[:bs], b.state)
            state_target = self.target.warm(b.obs[:bs], previous[:bs], b.state)
            q_target = self.target.unroll(b.obs[bs:], previous[bs:], state_target)[n:]
        q = self.net.unroll(b.obs[bs:], previous[bs:], state)
        taken = q[:learned].gather(-1, b.action[bs : bs + learned].unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            best = q[n:].argmax(-1, keepdim=True)
            value = _unrescale(q_target.gather(-1, best).squeeze(-1))
            total, discount = _returns(b.reward[bs:], b.alive[bs:], learned, n)
            y = _rescale(total + discount * value)
        delta = y - taken
        loss = (b.weight * delta.square().sum(0)).mean() * (0.5 / learned)
        size = delta.detach().abs()
        return loss, ETA * size.amax(0) + (1 - ETA) * size.mean(0)

    def update(self, batch: Batch) -> Tensor:
        """One gradient step; the priorities [B]."""
        loss, priority = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.online_list, CLIP)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.target_list, self.online_list, THETA)
        return priority


def _returns(reward: Tensor, alive: Tensor, learned: int, n: int) -> tuple[Tensor, Tensor]:
    """sum_j gamma^j r[t+j] up to a termination, and gamma^n (0 behind one), [L, B] each."""
    total, going = torch.zeros_like(reward[:learned]), torch.ones_like(reward[:learned])
    for j in range(n):
        total += GAMMA**j * going * reward[j : j + learned]
        going *= alive[j : j + learned]
    return total, GAMMA**n * going


def _rescale(x: Tensor) -> Tensor:
    size = x.abs()
    return x.sign() * (size / ((size + 1).sqrt() + 1) + RESCALE_EPS * size)


def _unrescale(x: Tensor) -> Tensor:
    size = x.abs()
    u = 2 * size / ((1 + 4 * RESCALE_EPS * (size + 1 + RESCALE_EPS)).sqrt() + 1 + 2 * RESCALE_EPS)
    return x.sign() * u * (u + 2)


# -- rlrun's side ----------------------------------------------------------------------------------


PEERS = Shape("lstm64", 4, (128, 128, 64), 64, (64,), 64, 20, 80, 5)  # the peers' floor
DEFAULT = Shape("lstm32", 4, (32,), 32, (), 32, 4, 20, 5)  # rlrun policy=r2d2
LARGE = Shape("lstm512", 4, (128, 128, 64), 512, (64,), 64, 40, 80, 5)
EPISODE = 500  # steps of the episodes the replay is filled with


def make_policy(
    shape: Shape, *, prev_inputs: bool = True, clip: float | None = CLIP, threads: int = 1,
    precision: str = "float32", backend: str = "torch",
) -> R2D2:  # fmt: skip
    """rlrun's policy with the layer sizes and the hyperparameters of the floor."""
    c = config(
        "policy=r2d2", "env=cartpole", f"learner.batch_size={shape.batch}",
        f"learner.threads={threads}", f"learner.precision={precision}",
        f"learner.backend={backend}",
        f"policy.learn_unroll_len={shape.unroll}", f"policy.burnin_step={shape.burnin}",
        f"policy.nstep={shape.nstep}", f"policy.gamma={GAMMA}", f"policy.lr={LR}",
        f"policy.adam_eps={ADAM_EPS}", f"policy.max_grad_norm={'null' if clip is None else clip}",
        f"policy.priority_eta={ETA}", f"policy.target_tau={THETA}",
        f"policy.value_rescale_eps={RESCALE_EPS}", f"policy.head_hidden={list(shape.head)}",
        f"policy.prev_inputs={prev_inputs}", f"torso.hidden={list(shape.torso)}",
        f"memory.hidden={shape.lstm}", "memory.forget_bias=1.0",
    )  # fmt: skip
    box = gym.spaces.Box(-np.inf, np.inf, (shape.obs,), np.float32)
    policy = product.make_policy(product.make_plan(c, (box, gym.spaces.Discrete(ACTIONS), 1)))
    assert isinstance(policy, R2D2)
    return policy


def twin(policy: R2D2, shape: Shape) -> Floor:
    """A floor with the weights of ``policy``; asserts that it has as many parameters."""
    floor = Floor(shape)
    for ours, theirs in ((policy.net, floor.net), (policy.target, floor.target)):
        theirs.load_state_dict({floor_name(n): w.clone() for n, w in ours.state_dict().items()})
    assert floor.parameters == parameters(policy), "the floor has other layers"
    return floor


def floor_name(name: str) -> str:
    """The floor's name of a parameter of QNet."""
    return name.replace("torso.layers", "encoder").replace("memory.core", "lstm")


def parameters(policy: R2D2) -> int:
    return sum(p.numel() for p in policy.net.parameters())


def make_rows(shape: Shape, *, rows: int, columns: int, seed: int = 0) -> Segment:
    """Random rows as a collector writes them: episodes of EPISODE steps, each with an end row.

    Columns are out of step with one another; every second episode is terminated, the others are
    truncated.
    """
    g = np.random.default_rng(seed)
    clock = np.arange(rows + 1)[:, None] + g.integers(EPISODE + 1, size=columns)
    clock -= clock[0] // 2  # column c is somewhere in its first episode
    t, episode = clock % (EPISODE + 1), clock // (EPISODE + 1)
    first = t == 0
    first[0] = True
    last, even = t[:rows] == EPISODE - 1, episode[:rows] % 2 == 0

    def floats(*size: int) -> torch.Tensor:
        return torch.from_numpy(g.standard_normal(size, np.float32))

    states = (floats(rows, columns, shape.lstm) * 0.1, floats(rows, columns, shape.lstm) * 0.1)
    return Segment(
        obs=floats(rows + 1, columns, shape.obs),
        first=torch.from_numpy(first),
        action=torch.from_numpy(g.integers(ACTIONS, size=(rows, columns))),
        reward=torch.from_numpy(g.random((rows, columns), np.float32)),
        terminated=torch.from_numpy(last & even),
        truncated=torch.from_numpy(last & ~even),
        valid=torch.from_numpy(t[:rows] != EPISODE),
        state=(states[0][0], states[1][0]),
        states=states,
    )


def make_replay(shape: Shape, *, rows: int, columns: int = 16, kind: str = "prioritized") -> Replay:
    """A replay that holds ``rows`` rows of ``make_rows`` in all."""
    policy = make_policy(shape)
    segment = make_rows(shape, rows=rows // columns, columns=columns)
    replay = make_table_replay(
        segment, rows=rows // columns + 1, window=policy.window,
        capacity=2 * rows // policy.window.learned, kind=kind,
    )  # fmt: skip
    replay.add(segment)
    return replay


def full_sample(replay: Replay, batch: int, *, ends: int = 0) -> Sample:
    """``batch`` windows without padding; the last transition of ``ends`` of them terminates."""
    keys = replay.windows.keys(replay.windows.all())
    s = replay.get(keys, 0).segment
    whole = s.valid.all(0) & ~s.first.any(0) & ~(s.terminated | s.truncated).any(0)
    picked = keys[whole.numpy()][:batch]
    assert len(picked) == batch, f"only {len(picked)} full windows of {replay.window.rows} rows"
    sample = replay.get(picked, 0)
    sample.segment.terminated[-1, :ends] = True
    weight = np.random.default_rng(2).uniform(0.2, 1.0, batch).astype(np.float32)
    return replace(sample, weight=torch.from_numpy(weight))
