"""Minibatches of a rollout: tensors for any network, numpy rows for one of linear layers."""

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
from rlrun.policy.base.rollout import RolloutRows
from rlrun.types import Tree, tree_map


@dataclass(frozen=True, slots=True)
class Batch:
    """M segments of S rows; without a memory M = N valid rows, S = 1."""

    obs: Tree  # [S, M, *O]
    previous: Tensor  # [S, M, F]
    first: Tensor  # [S, M] bool, on the host
    state: Tree  # [M, ...] stored state before row 0
    action: Tensor  # [S, M, *A]
    behaviour_log_prob: Tensor  # [S, M]
    advantage: Tensor  # [S, M]
    target: Tensor  # [S, M]
    value: Tensor  # [S, M] before the update
    valid: Tensor  # [S, M] bool

    def valid_rows(self) -> ValidRows:
        """The mask of valid rows."""
        return valid_rows(self.valid)

    def size(self) -> int:
        """The number of segments."""
        return self.valid.shape[1]

    def standardised(self) -> "Batch":
        """The batch with advantages of mean 0 and standard deviation 1."""
        return replace(self, advantage=standardise(self.advantage, self.valid_rows()))

    def take(self, index: np.ndarray) -> "Batch":
        """The segments ``index`` (int64 [m])."""
        on_host = torch.from_numpy(index)
        on_device = on_host.to(self.valid.device)

        def of(x: Tensor) -> Tensor:
            return x.index_select(1, on_device)

        return Batch(
            obs=tree_map(of, self.obs),
            previous=of(self.previous),
            first=self.first.index_select(1, on_host),
            state=tree_map(lambda x: x.index_select(0, on_device), self.state),
            action=of(self.action),
            behaviour_log_prob=of(self.behaviour_log_prob),
            advantage=of(self.advantage),
            target=of(self.target),
            value=of(self.value),
            valid=of(self.valid),
        )

    def split(self, parts: int) -> list["Batch"]:
        """``parts`` views of successive segments, of nearly equal size."""
        return [self._slice(a, b) for a, b in split_range(self.size(), parts)]

    def _slice(self, start: int, stop: int) -> "Batch":
        names = [f.name for f in fields(self)]
        cut = {n: tree_map(lambda x: x[:, start:stop], getattr(self, n)) for n in names}
        cut["state"] = tree_map(lambda x: x[start:stop], self.state)
        return Batch(**cut)


class NumpyBatch(NamedTuple):
    """RolloutRows of a plain network; every one counts."""

    x: np.ndarray  # float32 [N, F] inputs of the first layer
    previous: np.ndarray  # [N, S]
    action: np.ndarray  # [N, *A]
    behaviour_log_prob: np.ndarray  # [N], like all that follow
    advantage: np.ndarray
    target: np.ndarray
    value: np.ndarray

    def size(self) -> int:
        """The number of rows."""
        return len(self.x)

    def standardised(self) -> "NumpyBatch":
        return self._replace(advantage=policy_losses.standardise(self.advantage))

    def take(self, index: np.ndarray) -> "NumpyBatch":
        """The rows ``index`` (int64 [n])."""
        return NumpyBatch(*(x.take(index, 0) for x in self))

    def split(self, parts: int) -> list["NumpyBatch"]:
        return [NumpyBatch(*(x[a:b] for x in self)) for a, b in split_range(self.size(), parts)]

    def batch(self) -> Batch:
        """The same rows as tensors [1, N]."""
        tensors = (torch.from_numpy(part).unsqueeze(0) for part in self)
        x, previous, action, behaviour_log_prob, advantage, target, value = tensors
        valid = torch.ones(1, self.size(), dtype=torch.bool)
        return Batch(
            x, previous, ~valid, (), action, behaviour_log_prob, advantage, target, value, valid,
        )  # fmt: skip


Minibatch = Batch | NumpyBatch


def split_range(count: int, parts: int) -> list[tuple[int, int]]:
    """(start, stop) of ``parts`` successive ranges of nearly equal length, none of them empty."""
    bounds = [round(i * count / parts) for i in range(parts + 1)]
    return [(a, b) for a, b in pairwise(bounds) if a < b]


def to_numpy_batch(batch: Batch, net: NumpyActorCritic) -> NumpyBatch:
    """A ``Batch`` of single rows [1, N] in numpy."""

    def of(x: Tensor) -> np.ndarray:
        return x.squeeze(0).numpy()

    rows = (
        batch.previous,
        batch.action,
        batch.behaviour_log_prob,
        batch.advantage,
        batch.target,
        batch.value,
    )
    return NumpyBatch(net.inputs(batch.obs), *map(of, rows))


def split_rollout(
    rows: RolloutRows, advantages: Advantage, value: Tensor, length: int | None
) -> Batch:
    """Segments of about ``length`` rows of a rollout, with their stored states.

    ``length`` None: every valid row is a segment, without a state. Columns are cut into equal
    segments; the last is padded where the rows do not divide evenly.
    """
    steps, columns = rows.valid.shape
    if length is None:
        index, own = rows.index.unsqueeze(0), torch.ones(1, len(rows.index), dtype=torch.bool)
        state: Tree = ()
    else:
        length = -(-steps // max(1, round(steps / length)))
        index, own = segment_index(steps, columns, length)
        state = tree_map(lambda x: x.flatten(0, 1)[index[0].to(x.device)], rows.states)
    on_device = index.to(rows.valid.device)

    def of(x: Tensor) -> Tensor:
        return x.flatten(0, 1)[on_device]

    return Batch(
        obs=tree_map(lambda x: of(x[:-1]), rows.obs),
        previous=of(rows.previous[:-1]),
        first=rows.first[:-1].flatten()[index] & own,
        state=state,
        action=of(rows.action),
        behaviour_log_prob=of(rows.behaviour_log_prob),
        advantage=of(advantages.advantage),
        target=of(advantages.target),
        value=of(value),
        valid=of(rows.valid) & own.to(on_device.device),
    )


def segment_index(steps: int, columns: int, length: int) -> tuple[Tensor, Tensor]:
    """(int64 [length, M] indices of flattened [steps, columns] rows, bool [length, M] not padding).

    Segment k of column b is number k columns + b; padding has the index of the last row.
    """
    count = -(-steps // length)
    row = torch.arange(count) * length + torch.arange(length).unsqueeze(-1)  # [length, count]
    index = row.clamp(max=steps - 1).unsqueeze(-1) * columns + torch.arange(columns)
    own = (row < steps).unsqueeze(-1).expand_as(index)
    return index.reshape(length, -1), own.reshape(length, -1)
