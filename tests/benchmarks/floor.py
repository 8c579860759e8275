"""The floor: the R2D2 update a user would write by hand for one fixed shape, in bare torch.

The same maths as ``R2D2.update`` on windows that are full up to their last transition: burn-in
without gradient, one unroll per network, previous action and reward as inputs, double Q, dueling,
value rescaling, n-step targets, eta-mixed priorities, gradient clipping, Adam, soft target. No
masks, no config, no metrics: what those cost rlrun is what the ratio shows.
"""

import copy
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.benchmarks.product import Sample

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
