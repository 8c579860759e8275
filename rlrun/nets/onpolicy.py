"""What on-policy learners share: rows out of a rollout, descent, running statistics."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun.functional.policy import Choice, Counted, counted
from rlrun.functional.returns import Advantage, goes_on, reverse_scan
from rlrun.functional.rows import shape_reward
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.moments import CLIP, Moments
from rlrun.nets.optimise import Adam, Flat
from rlrun.schema import OnPolicyConfig
from rlrun.types import Segment, Tree, tree_map


@dataclass(frozen=True, slots=True)
class Rows:
    """A rollout as a learner reads it, on its device; padding is zero everywhere."""

    obs: Tree  # [T+1, B, *O]
    side: Tensor  # [T+1, B, F] previous action and reward, where the network sees them
    first: Tensor  # [T+1, B] bool, on the host
    states: Tree  # [T, B, ...] before every row
    action: Tensor  # [T, B, *A] raw where it is real
    behaviour: Tensor  # [T, B] log mu(action) of who acted
    reward: Tensor  # [T, B] scaled, clipped, normalised
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool
    places: Tensor  # [N] int64, on the host: where valid is, rows and columns flattened

    @property
    def ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """(terminated, truncated, valid)."""
        return self.terminated, self.truncated, self.valid


class Descender:
    """An actor-critic network, the Adam that moves it, and the running moments of returns."""

    def __init__(
        self, net: ActorCritic, config: OnPolicyConfig, lr_at: Callable[[int], float]
    ) -> None:
        """``lr_at``: env_steps -> learning rate."""
        self.net, self.config, self.lr_at = net, config, lr_at
        self.device = next(net.parameters()).device
        self.parameters: list[Tensor] = list(net.parameters())
        self.flat = Flat(self.parameters)
        self.adam = Adam([self.flat.values], eps=config.adam_eps, grad_clip=config.grad_clip)
        self.returns = Moments(())  # of discounted returns so far, which rewards are divided by
        self.running = torch.zeros(0)  # [B] the discounted return of every open episode
        self.seconds = {"backward": 0.0, "optimiser": 0.0}

    def read(self, segment: Segment) -> Rows:
        """The rows of a rollout (on the host); takes its rewards into the statistics first."""
        c = self.config
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        reward = torch.where(segment.valid, reward, torch.zeros_like(reward))
        if c.normalize_reward:
            reward = self._normalise(reward, segment)
        first, places = segment.first, segment.valid.flatten().nonzero().squeeze(-1)
        segment, reward = segment.to(self.device), reward.to(self.device)
        obs, side = self.net.inputs(segment)
        valid, extras = segment.valid, segment.extras
        action = extras.get("raw_action", segment.action)
        own = valid.reshape(*valid.shape, *[1] * (action.ndim - 2))
        behaviour = extras["log_prob"]
        return Rows(
            obs=obs,
            side=side,
            first=first,
            states=segment.states,
            action=torch.where(own, action, torch.zeros_like(action)),
            behaviour=torch.where(valid, behaviour, torch.zeros_like(behaviour)),
            reward=reward,
            terminated=segment.terminated,
            truncated=segment.truncated,
            valid=valid,
            places=places,
        )

    def _normalise(self, reward: Tensor, segment: Segment) -> Tensor:
        """Rewards divided by the standard deviation of running discounted returns, then clipped.

        R_t = r_t + gamma R_{t-1} within an episode. Source: OpenAI Baselines' VecNormalize.
        """
        ends = (segment.terminated, segment.truncated, segment.valid)
        on = torch.where(goes_on(*ends), self.config.gamma, 0.0)
        if len(self.running) != reward.shape[1]:
            self.running = torch.zeros(reward.shape[1])
        begun = torch.where(segment.first[0] | ~segment.valid[0], 0.0, self.running)
        reached = reward.clone()
        reached[0] += self.config.gamma * begun
        decay = torch.cat([torch.zeros_like(on[:1]), on[:-1]]).flip(0)
        reached = reverse_scan(reached.flip(0), decay).flip(0)
        last = segment.valid[-1] & ~(segment.terminated | segment.truncated)[-1]
        self.running = torch.where(last, reached[-1], 0.0)
        seen = reached[segment.valid]
        if len(seen):
            self.returns.add(seen)
        return (reward * self.returns.scale()).clamp(-CLIP, CLIP)

    def step(
        self, outputs: list[Tensor], slopes: list[Tensor], env_steps: int
    ) -> dict[str, Tensor]:
        """Descend on the loss whose slopes over ``outputs`` are ``slopes``.

        Gradient norm before clipping, step size.
        """
        lr, began = self.lr_at(env_steps), time.perf_counter()
        grads = torch.autograd.grad(outputs, self.parameters, slopes)
        backward = time.perf_counter()
        self.seconds["backward"] += backward - began
        with torch.no_grad():
            torch._foreach_copy_(self.flat.parts, list(grads))
        norm = self.adam.step([self.flat.slopes], lr)
        self.seconds["optimiser"] += time.perf_counter() - backward
        return {"train/grad_norm": norm, "train/lr": torch.tensor(lr, device=norm.device)}

    def absorb(self, rows: Rows) -> None:
        """Take the rollout's observations into the statistics that the next one is seen with.

        Behind the update: who acted in this rollout saw it with the earlier ones.
        """
        if self.net.moments is not None and len(rows.places):
            seen = rows.obs[:-1].flatten(0, 1)
            self.net.moments.add(seen[rows.places.to(seen.device)])

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters and statistics, detached, not copied."""
        return dict(self.net.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.weights(),
            "adam": self.adam.state_dict(),
            "returns": dict(self.returns.state_dict()),
            "running": self.running,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.adam.load_state_dict(state["adam"])
        self.returns.load_state_dict(state["returns"])
        self.running = state["running"].clone()


class Loss(NamedTuple):
    """What is descended on: a slope for each output, and 0-d metrics."""

    outputs: list[Tensor]
    slopes: list[Tensor]
    metrics: dict[str, Tensor]


def join(
    config: OnPolicyConfig,
    choice: Choice,
    policy: Tensor,
    value: Tensor,
    baseline: Tensor,
    rows: Counted,
) -> Loss:
    """The loss of policy + value_coef V - entropy_coef mean entropy, no metrics yet.

    ``policy``, ``baseline``: the slopes [*] of the first two over log pi and V.
    """
    outputs, slopes = [choice.log_prob, value], [policy, config.value_coef * baseline]
    if config.entropy_coef > 0:
        worth = rows.select((-config.entropy_coef * rows.share).expand_as(value))
        outputs, slopes = [*outputs, choice.entropy], [*slopes, worth]
    return Loss(outputs, slopes, {})


def told(
    config: OnPolicyConfig, policy: Tensor, baseline: Tensor, choice: Choice, rows: Counted
) -> dict[str, Tensor]:
    """The metrics of every on-policy learner; ``policy``, ``baseline``: losses, 0-d."""
    entropy = rows.mean(choice.entropy)
    return {
        "train/loss": policy + config.value_coef * baseline - config.entropy_coef * entropy,
        "train/policy_loss": policy,
        "train/value_loss": baseline,
        "train/entropy": entropy,
    }


def opening(states: Tree) -> Tree:
    """The states [B, ...] before row 0 of [T, B, ...]."""
    return tree_map(lambda x: x[0], states)


# -- minibatches -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """M segments of S rows side by side; without a memory single rows, none of them padding."""

    obs: Tree  # [S, M, *O]
    side: Tensor  # [S, M, F]
    first: Tensor  # [S, M] bool, on the host
    state: Tree  # [M, ...] before row 0, as it was stored
    action: Tensor  # [S, M, *A]
    behaviour: Tensor  # [S, M]
    advantage: Tensor  # [S, M]
    target: Tensor  # [S, M]
    value: Tensor  # [S, M] before the update
    valid: Tensor  # [S, M] bool

    def counted(self) -> Counted:
        """The rows that count."""
        return counted(self.valid)

    def part(self, order: Tensor) -> "Batch":
        """The segments ``order`` (int64 [m], on the host)."""
        there = order.to(self.valid.device)

        def of(x: Tensor) -> Tensor:
            return x.index_select(1, there)

        return Batch(
            obs=tree_map(of, self.obs),
            side=of(self.side),
            first=self.first.index_select(1, order),
            state=tree_map(lambda x: x.index_select(0, there), self.state),
            action=of(self.action),
            behaviour=of(self.behaviour),
            advantage=of(self.advantage),
            target=of(self.target),
            value=of(self.value),
            valid=of(self.valid),
        )

    def slices(self, parts: int) -> list["Batch"]:
        """``parts`` runs of successive segments of nearly the same number, not copied."""
        count = self.valid.shape[1]
        bounds = [round(i * count / parts) for i in range(parts + 1)]
        return [self._run(a, b) for a, b in pairwise(bounds) if a < b]

    def _run(self, start: int, stop: int) -> "Batch":
        names = [f.name for f in fields(self)]
        cut = {n: tree_map(lambda x: x[:, start:stop], getattr(self, n)) for n in names}
        cut["state"] = tree_map(lambda x: x[start:stop], self.state)
        return Batch(**cut)


def deal(rows: Rows, found: Advantage, value: Tensor, length: int | None) -> Batch:
    """A rollout as segments of about ``length`` rows with their stored states.

    None: every valid row is a segment of its own, without a state. Columns are cut into equal
    segments; the last ends with padding where that does not come out even.
    """
    steps, columns = rows.valid.shape
    if length is None:
        index, real = rows.places.unsqueeze(0), torch.ones(1, len(rows.places), dtype=torch.bool)
        state: Tree = ()
    else:
        length = -(-steps // max(1, round(steps / length)))
        index, real = segment_places(steps, columns, length)
        state = tree_map(lambda x: x.flatten(0, 1)[index[0].to(x.device)], rows.states)
    there = index.to(rows.valid.device)

    def of(x: Tensor) -> Tensor:
        return x.flatten(0, 1)[there]

    return Batch(
        obs=tree_map(lambda x: of(x[:-1]), rows.obs),
        side=of(rows.side[:-1]),
        first=rows.first[:-1].flatten()[index] & real,
        state=state,
        action=of(rows.action),
        behaviour=of(rows.behaviour),
        advantage=of(found.advantage),
        target=of(found.target),
        value=of(value),
        valid=of(rows.valid) & real.to(there.device),
    )


def segment_places(steps: int, columns: int, length: int) -> tuple[Tensor, Tensor]:
    """(int64 [length, M] places in flattened [steps, columns] rows, bool [length, M] not padding).

    Segment k of column b is number k columns + b; places of padding are those of the last row.
    """
    count = -(-steps // length)
    row = torch.arange(count) * length + torch.arange(length).unsqueeze(-1)  # [length, count]
    place = row.clamp(max=steps - 1).unsqueeze(-1) * columns + torch.arange(columns)
    real = (row < steps).unsqueeze(-1).expand_as(place)
    return place.reshape(length, -1), real.reshape(length, -1)
