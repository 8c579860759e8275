"""State and outputs of an actor for one environment, in the units that a person reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlrun.acting.actor import NetActor
from rlrun.acting.box import BoxActor
from rlrun.acting.stochastic import OnPolicyActor, PolicyNetActor
from rlrun.acting.team import TeamActor
from rlrun.acting.values import ValueActor
from rlrun.functional.masks import mask_logits_numpy
from rlrun.functional.value import unrescale
from rlrun.types import Act, Actor, Tree, tree_leaves


@dataclass(frozen=True, slots=True)
class Reading:
    """State, values and action of one row of one environment (of a team: for its first agent).

    ``kind``: what ``values`` [K] are: Q of each action, probability of each action (of each
    component, one after the other), mean (of each number of an action in a Box); "" and none where
    it is not known. ``state`` [H]: the recurrent state after the row (the output h of an LSTM,
    without its cell), empty without a memory. ``action`` [*A]: as the environment takes it.
    """

    kind: str
    values: np.ndarray
    state: np.ndarray
    action: np.ndarray


class RecordingActor:
    """An actor that hands what it computes for column 0 to ``receive``; it acts as ``actor``."""

    def __init__(self, actor: Actor, receive: Callable[[Reading], None]) -> None:
        self.actor, self.receive, self.extras = actor, receive, actor.extras

    def refresh(self) -> None:
        self.actor.refresh()

    def initial_state(self) -> Tree:
        return self.actor.initial_state()

    def act(self, *row: Any, explore: np.ndarray | None) -> Act:
        actor = self.actor
        if not isinstance(actor, NetActor):
            act = actor.act(*row, explore=explore)
            self.receive(Reading("", np.zeros(0), _state_of(act), np.asarray(act.action[0])))
            return act
        outputs, state = actor.evaluate(*row, explore=explore)
        act = Act(*actor.choose(outputs, row[0], explore), state)
        kind, values = read_outputs(actor, outputs, row[0])
        self.receive(Reading(kind, values, _state_of(act), np.asarray(act.action[0])))
        return act


def read_outputs(actor: NetActor, outputs: np.ndarray, obs: Tree) -> tuple[str, np.ndarray]:
    """Return (kind, values [K]) of column 0 from ``outputs`` [E, ...]; see ``Reading``."""
    match actor:
        case ValueActor() if actor.value_rescale_eps is not None:
            q = unrescale(torch.from_numpy(np.array(outputs[0])), actor.value_rescale_eps)
            return "Q", q.numpy()
        case ValueActor():
            return "Q", outputs[0]
        case TeamActor():
            return "Q", outputs[0, 0]
        case OnPolicyActor() if actor.sizes:
            logits = mask_logits_numpy(outputs, obs) if actor.net.masked else outputs
            return "probability", softmax(logits[0], list(actor.sizes))
        case PolicyNetActor() if actor.bounds is None:
            logits = mask_logits_numpy(outputs, obs) if actor.net.masked else outputs
            return "probability", softmax(logits[0], [logits.shape[-1]])
        case OnPolicyActor() | PolicyNetActor():
            assert actor.bounds is not None
            return "mean", actor.bounds.from_unit(outputs)[0].ravel()
        case BoxActor():
            mean = np.tanh(outputs[:, : actor.bounds.size])
            return "mean", actor.bounds.from_unit(mean)[0].ravel()
    return "", np.zeros(0)


def softmax(logits: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Return the probabilities of each of the parts of ``logits`` [K], which have ``sizes``."""
    parts = np.split(logits.astype(np.float64), np.cumsum(sizes)[:-1])
    weights = [np.exp(part - part.max()) for part in parts]
    return np.concatenate([w / w.sum() for w in weights])


def _state_of(act: Act) -> np.ndarray:
    """Return the numbers of the first leaf of the state of column 0, [H]."""
    leaves = [
        x for x in tree_leaves(act.state) if isinstance(x, np.ndarray) and x.dtype.kind == "f"
    ]
    return leaves[0][0].ravel() if leaves else np.zeros(0)
