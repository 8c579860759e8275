"""Central inference: one role acts for all collectors, in batches of whoever is ready."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.codec import DamagedFrame, ForeignFrame, LimitExceeded, NeedKeyFrame, StaleFrame
from rlrun.codec import decode as decode_frame
from rlrun.codec import encode as encode_frame
from rlrun.errors import ResourceError
from rlrun.functional.explore import Temperature
from rlrun.pipeline.ray.messages import NeedFrame, RoleFailure, answered, constructed
from rlrun.pipeline.ray.process import prepare, replaced, unpacked
from rlrun.pipeline.ray.weights import Publisher
from rlrun.pipeline.transport import AutoCollectorSide
from rlrun.types import Act, Actor, Policy, Tree, tree_leaves, tree_map

RETRY_SECONDS = 0.2  # between two questions to a predictor that is being restarted
GIVE_UP_SECONDS = 60.0


@dataclass(slots=True)
class PredictorParts:
    """Parts of the predictor."""

    policies: list[Policy]  # in rounds: one for each collector; else one for all
    side: AutoCollectorSide
    publisher: Publisher  # of the first policy
    columns: int  # of one collector
    rounds: bool  # see ``rlrun.run.ray.in_rounds``


@dataclass(slots=True)
class _Question:
    """The rows of one collector that wait for their actions."""

    number: int
    arrays: dict[str, Any]
    answer: "asyncio.Future[Any]"


class PredictorRole:
    """Keeps the recurrent state of every (collector, environment) and acts with published weights.

    In rounds every collector's rows are a batch of their own and have random numbers of their own,
    so that the actions are those the collector would compute. The state of the generator goes back
    with them: after either process was lost, the collector sends it, and the actions are the same.
    Else the rows of all who wait are one batch, of a power of two of collectors (padding is
    computed and dropped).
    """

    failed: RoleFailure | None

    @constructed
    def __init__(self, make: bytes) -> None:
        """``make``: packed, () -> PredictorParts."""
        self.log = prepare("predictor", threads=1)
        self.parts: PredictorParts = unpacked(make)()
        # A restarted one has the weights of the run's beginning until it is sent others.
        self.ready = not replaced()
        self.rounds = self.parts.rounds
        self.actors: dict[tuple[int, int], Actor] = {}  # (policy, collectors in a batch) -> actor
        self.states: dict[int, Tree] = {}  # collector -> state before its next row
        self.waiting: list[_Question] = []
        self.version = -1

    @answered
    def load(self, versions: tuple[int, ...], *frames: Any) -> Any:
        """Act with the newest of ``frames``; return NeedFrame where one is missing for it."""
        weights = None
        for version, frame in zip(versions, frames, strict=True):
            try:
                weights, self.version = self.parts.side.unpack(frame), version
            except (StaleFrame, ForeignFrame):
                continue
            except NeedKeyFrame as need:
                return NeedFrame(need.stream, need.have_seq, need.have_hash)
            except (DamagedFrame, LimitExceeded):
                known = self.parts.side.request()
                return NeedFrame(known.stream, known.have_seq, known.have_hash)
        if weights is not None:
            self.ready = True
            self.parts.publisher.load(weights)
            first, *others = self.parts.policies
            for policy in others:
                policy.load(first.weights())
            for actor in self.actors.values():
                actor.refresh()
        return None

    async def lives(self) -> None:
        """Never return: the call ends with the process, which tells the driver."""
        await asyncio.Event().wait()

    async def act(self, number: int, message: bytes) -> Any:
        """Return the coded actions, extras and next state of the rows in ``message``.

        Rows that carry no state go on from the one that is kept here. None: it, or the weights, are
        not known after a restart; the collector asks again, with its own state.
        """
        if self.failed is not None:
            return self.failed
        if not self.ready:
            return None
        arrays = decode_frame(message)
        if "state" in arrays:
            self.states[number] = _tree(arrays["state"])
            if self.rounds:
                _set_generator(self.parts.policies[number].generator, arrays["generator"])
        if number not in self.states:
            return None
        question = _Question(number, arrays, asyncio.get_running_loop().create_future())
        self.waiting.append(question)
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_soon(self._answer)
        return await question.answer

    def _answer(self) -> None:
        """Answer all who wait; those who come meanwhile are the next batch."""
        questions, self.waiting = self.waiting, []
        batches = [[q] for q in questions] if self.rounds else [questions]
        for batch in batches:
            found = self._act(batch)
            failed = found if isinstance(found, RoleFailure) else None
            for i, question in enumerate(batch):
                question.answer.set_result(failed or found[i])

    @answered
    def _act(self, batch: list[_Question]) -> Any:
        """The replies to ``batch``, coded."""
        columns, size = self.parts.columns, 1
        while size < len(batch):
            size *= 2
        padded = [*batch, *[batch[-1]] * (size - len(batch))]
        policy = batch[0].number if self.rounds else 0
        actor = self._actor(policy, size)
        explore = np.concatenate([q.arrays["explore"] for q in padded])
        if batch[0].arrays["temperature"]:
            explore = explore.view(Temperature)
        first, action, reward = (np.concatenate([q.arrays[n] for q in padded]) for n in _ROWS)
        obs = _join([_tree(q.arrays["obs"]) for q in padded])
        state = _join([self.states[q.number] for q in padded])
        found = actor.act(obs, first, action, reward, state, explore=explore)
        replies = []
        for i, question in enumerate(batch):
            part = slice(i * columns, (i + 1) * columns)
            state = tree_map(lambda x, part=part: np.ascontiguousarray(x[part]), found.state)
            self.states[question.number] = state
            extras = {name: x[part] for name, x in found.extras.items()}
            reply = {"action": found.action[part], "extras": extras, "state": _named(state)}
            if self.rounds:
                reply["generator"] = _generator_state(self.parts.policies[policy].generator)
            replies.append(encode_frame(reply, coder="raw"))
        return replies

    def _actor(self, policy: int, size: int) -> Actor:
        if (policy, size) not in self.actors:
            own = self.parts.policies[policy]
            self.actors[policy, size] = own.actor(size * self.parts.columns)
            self.actors[policy, size].refresh()
        return self.actors[policy, size]

    @answered
    def state(self) -> Any:
        """Generators of exploration, for a checkpoint; states are the collectors'."""
        return {"generators": [p.generator.bit_generator.state for p in self.parts.policies]}

    @answered
    def restore(self, state: dict[str, Any]) -> Any:
        """The inverse of ``state``."""
        for policy, own in zip(self.parts.policies, state["generators"], strict=True):
            policy.generator.bit_generator.state = own
        self.states.clear()
        self.actors.clear()
        return None

    @answered
    def take_log(self) -> Any:
        """The log since the last call."""
        return self.log.take()


_ROWS = ("first", "prev_action", "prev_reward")


class RemoteActor:
    """Acts by asking the predictor; the weights are its own."""

    def __init__(
        self, local: Actor, predictor: Any, number: int, generator: np.random.Generator
    ) -> None:
        """``local``: tells shapes. ``predictor``: handle of its role. ``number``: of the
        collector. ``generator``: of the collector's policy; in rounds it follows the predictor's.
        """
        self.extras, self.initial_state = local.extras, local.initial_state
        self.predictor, self.number, self.generator = predictor, number, generator
        self.pushed: Tree | None = local.initial_state()  # goes with the next question

    def refresh(self) -> None:
        """Nothing: the predictor's weights are refreshed by the driver."""

    def push(self, state: Tree) -> None:
        """Let the predictor go on from ``state`` with the next rows."""
        self.pushed = state

    def act(
        self,
        obs: Tree,
        first: np.ndarray,
        prev_action: np.ndarray,
        prev_reward: np.ndarray,
        state: Tree,
        *,
        explore: np.ndarray | None,
    ) -> Act:
        """As ``Actor.act``; ``state`` is sent only where the predictor does not have it."""
        assert explore is not None, "evaluations act by themselves"
        message = {
            "obs": _named(obs), "first": first, "prev_action": prev_action,
            "prev_reward": prev_reward, "explore": np.asarray(explore),
            "temperature": np.array(isinstance(explore, Temperature)),
        }  # fmt: skip
        reply = self._ask(message, state)
        found = decode_frame(reply)
        if "generator" in found:
            _set_generator(self.generator, found["generator"])
        extras = {name: np.array(x) for name, x in found.get("extras", {}).items()}
        return Act(np.array(found["action"]), extras, _tree(found["state"]))

    def _ask(self, message: dict[str, Any], state: Tree) -> bytes:
        """The predictor's reply; it is asked again, with the state, after it was restarted."""
        import ray

        deadline = time.monotonic() + GIVE_UP_SECONDS
        while True:
            known: dict[str, Any] = {}
            if self.pushed is not None:
                generator = _generator_state(self.generator)
                known = {"state": _named(self.pushed), "generator": generator}
            frame = encode_frame(message | known, coder="raw")
            try:
                reply = ray.get(self.predictor.act.remote(self.number, frame))
            except ray.exceptions.RayError as e:
                if time.monotonic() > deadline:
                    raise ResourceError(
                        f"pipeline.inference = central: the predictor does not answer for "
                        f"{GIVE_UP_SECONDS:g} s ({type(e).__name__}); see its log; local is allowed"
                    ) from e
                self.pushed = state
                time.sleep(RETRY_SECONDS)
                continue
            if isinstance(reply, RoleFailure):
                raise reply.error("the predictor")
            if reply is not None:
                self.pushed = None
                return bytes(reply)
            self.pushed = state
            time.sleep(RETRY_SECONDS / 10)


def _generator_state(generator: np.random.Generator) -> np.ndarray:
    """The state of a generator as the codec takes it."""
    return np.frombuffer(json.dumps(generator.bit_generator.state).encode(), np.uint8)


def _set_generator(generator: np.random.Generator, state: np.ndarray) -> None:
    generator.bit_generator.state = json.loads(state.tobytes())


def _named(tree: Tree) -> dict[str, Any]:
    """A tree as the codec takes it: ``leaf``, or tuples by their numbers."""
    if isinstance(tree, dict):
        return {"dict": {name: _named(child) for name, child in tree.items()}}
    if isinstance(tree, tuple):
        return {"tuple": {str(i): _named(child) for i, child in enumerate(tree)}}
    return {"leaf": np.ascontiguousarray(tree)}


def _tree(named: Any) -> Tree:
    """The inverse of ``_named``, in arrays of its own; what holds no array is ()."""
    if "leaf" in named:
        return np.array(named["leaf"])
    if "dict" in named:
        return {name: _tree(child) for name, child in named["dict"].items()}
    children = named.get("tuple", {})
    return tuple(_tree(children[str(i)]) for i in range(len(children)))


def _join(trees: list[Tree]) -> Tree:
    """Trees [E_i, ...] as one [sum E_i, ...]."""
    if len(trees) == 1:
        return trees[0]
    leaves = [tree_leaves(tree) for tree in trees]
    joined = iter([np.concatenate(same) for same in zip(*leaves, strict=True)])
    return tree_map(lambda _: next(joined), trees[0])
