"""Minibatches of a rollout: of tensors for any network, of numpy rows for a plain one."""

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlrun.functional.policy import ValidRows, standardise, valid_rows
from rlrun.functional.returns import Advantage
from rlrun.kernels import policy_losses
from rlrun.kernels.actor_critic import NumpyActorCritic
from rlrun.policy.base.rollout import Rows
from rlrun.types import Tree, tree_map


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

    def valid_rows(self) -> ValidRows:
        """The rows that count."""
        return valid_rows(self.valid)

    def size(self) -> int:
        """How many segments there are."""
        return self.valid.shape[1]

    def standardised(self) -> "Batch":
        """With advantages of mean 0 and deviation 1."""
        return replace(self, advantage=standardise(self.advantage, self.valid_rows()))

    def part(self, places: np.ndarray) -> "Batch":
        """The segments ``places`` (int64 [m])."""
        order = torch.from_numpy(places)
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
        return [self._run(a, b) for a, b in runs(self.size(), parts)]

    def _run(self, start: int, stop: int) -> "Batch":
        names = [f.name for f in fields(self)]
        cut = {n: tree_map(lambda x: x[:, start:stop], getattr(self, n)) for n in names}
        cut["state"] = tree_map(lambda x: x[start:stop], self.state)
        return Batch(**cut)


class Bare(NamedTuple):
    """Rows of a plain network; every one counts."""

    x: np.ndarray  # float32 [N, F] what its first layer sees
    side: np.ndarray  # [N, S]
    action: np.ndarray  # [N, *A]
    behaviour: np.ndarray  # [N], like all that follow
    advantage: np.ndarray
    target: np.ndarray
    value: np.ndarray

    def size(self) -> int:
        """How many rows there are."""
        return len(self.x)

    def standardised(self) -> "Bare":
        """See ``Batch``."""
        return self._replace(advantage=policy_losses.standardise(self.advantage))

    def part(self, places: np.ndarray) -> "Bare":
        """The rows ``places`` (int64 [n])."""
        return Bare(*(x.take(places, 0) for x in self))

    def slices(self, parts: int) -> list["Bare"]:
        """See ``Batch``."""
        return [Bare(*(x[a:b] for x in self)) for a, b in runs(self.size(), parts)]

    def batch(self) -> Batch:
        """The same as tensors [1, N]."""
        tensors = (torch.from_numpy(part).unsqueeze(0) for part in self)
        x, side, action, behaviour, advantage, target, value = tensors
        valid = torch.ones(1, self.size(), dtype=torch.bool)
        return Batch(
            x, side, ~valid, (), action, behaviour, advantage, target, value, valid,
        )  # fmt: skip


Minibatch = Batch | Bare


def runs(count: int, parts: int) -> list[tuple[int, int]]:
    """(start, stop) of ``parts`` successive runs of nearly the same length, none of them empty."""
    bounds = [round(i * count / parts) for i in range(parts + 1)]
    return [(a, b) for a, b in pairwise(bounds) if a < b]


def bare(batch: Batch, net: NumpyActorCritic) -> Bare:
    """The single rows of a Batch [1, N] in numpy."""

    def of(x: Tensor) -> np.ndarray:
        return x.squeeze(0).numpy()

    rows = (batch.side, batch.action, batch.behaviour, batch.advantage, batch.target, batch.value)
    return Bare(net.inputs(batch.obs), *map(of, rows))


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
