"""The collector, the predictor and the evaluator, each in the process of its role.

With central inference the predictor selects the actions of all collectors, in batches.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from rlrun.pipeline.evaluate import Evaluation, Evaluator
from rlrun.pipeline.overlapped import CollectorWorker, MakeCollector, MakeCollectorSide, attempt
from rlrun.pipeline.transport import CollectorSide
from rlrun.types import Act, Actor, ActRow, Policy, generator, tree_map

Weights = dict[str, np.ndarray]
ORDER_SECONDS = 0.001  # until a call that came too early looks again


class PredictorLost(Exception):
    """Raised when the predictor's process has ended or has no weights yet."""


@dataclass(frozen=True, slots=True)
class Question:
    """The next rows of a collector's environments."""

    number: int  # of the collector
    rows: ActRow
    explore: np.ndarray
    generator: Mapping[str, Any]  # state of the exploration's random numbers


class PredictorRole:
    """Selects actions with the published weights.

    In rounds, the rows of every collector are a batch of their own, with that collector's random
    numbers, whose state is returned: the actions equal those that the collector would compute.
    Otherwise the rows of all waiting collectors are one batch, padded to a power of two of
    collectors. The role keeps no state between questions, so a lost process loses nothing.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        side: CollectorSide,
        *,
        columns: int,
        rounds: bool,
        seed: int,
    ) -> None:
        """``policies``: one per collector in rounds, else one. ``columns``: of each collector."""
        self.policies, self.side, self.columns = policies, side, columns
        self.rounds, self.seed = rounds, seed
        self.actors: dict[tuple[int, int], Actor] = {}  # (policy, collectors in a batch) -> actor
        self.waiting: list[tuple[Question, asyncio.Future[Any]]] = []
        self.ready = False

    def load(self, env_steps: int, *messages: Any) -> None:
        """Load successive versions of the weights; the last one is used."""
        for message in messages:
            self.policies[0].load(self.side.unpack(message))
        for policy in self.policies[1:]:
            policy.load(self.policies[0].weights())
        for actor in self.actors.values():
            actor.refresh()
        if not self.ready:  # a resumed run or a new process must not repeat random numbers
            rng = generator(self.seed, f"predictor/{env_steps}")
            self.policies[0].generator.bit_generator.state = rng.bit_generator.state
        self.ready = True

    def act(self, question: Question) -> Any:
        """Return a future of (actions, extras, state, generator), or None without weights."""
        if not self.ready:
            return None
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((question, future))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().call_soon(self._answer)
        return future

    def _answer(self) -> None:
        """Answer all waiting questions. Those that arrive meanwhile form the next batch."""
        waiting, self.waiting = self.waiting, []
        for batch in [[w] for w in waiting] if self.rounds else [waiting]:
            error, replies = attempt(self._act, [question for question, _ in batch])
            for i, (_, future) in enumerate(batch):
                future.set_result((error, replies if error is not None else replies[i]))

    def _act(self, questions: list[Question]) -> list[Any]:
        """Return (actions, extras, state, generator) for each of ``questions``."""
        size = 1 << (len(questions) - 1).bit_length()
        padded = [*questions, *[questions[-1]] * (size - len(questions))]
        number = questions[0].number if self.rounds else 0
        policy, actor = self.policies[number], self._actor(number, size)
        if self.rounds:
            policy.generator.bit_generator.state = questions[0].generator
        rows = tree_map(lambda *x: np.concatenate(x), *[question.rows for question in padded])
        explore = np.concatenate([question.explore for question in padded])
        out = actor.act(*rows, explore=explore.view(type(questions[0].explore)))
        replies = []
        for i, question in enumerate(questions):
            part = slice(i * self.columns, (i + 1) * self.columns)
            state = policy.generator.bit_generator.state if self.rounds else question.generator
            extras = {name: x[part] for name, x in out.extras.items()}
            memory_state = tree_map(lambda x, part=part: x[part], out.state)
            replies.append((out.action[part], extras, memory_state, state))
        return replies

    def _actor(self, policy: int, size: int) -> Actor:
        if (policy, size) not in self.actors:
            self.actors[policy, size] = self.policies[policy].actor(size * self.columns)
            self.actors[policy, size].refresh()
        return self.actors[policy, size]


class RemoteActor:
    """A collector's actor that asks the predictor."""

    def __init__(
        self, local: Actor, predictor: Any, number: int, generator: np.random.Generator
    ) -> None:
        """``local``: defines shapes. ``predictor``: handle of the role.

        ``generator``: of the collector's policy; in rounds it follows the predictor's.
        """
        self.local, self.extras, self.initial_state = local, local.extras, local.initial_state
        self.predictor, self.number, self.generator = predictor, number, generator

    def refresh(self) -> None:
        """Do nothing: the driver refreshes the predictor's weights."""

    def act(self, *row: *ActRow, explore: np.ndarray | None) -> Act:
        """Select actions as ``Actor.act``. Raises: PredictorLost."""
        import ray

        assert explore is not None, "evaluations do not use the predictor"
        question = Question(self.number, row, explore, self.generator.bit_generator.state)
        try:
            error, value, _ = ray.get(self.predictor.call.remote("act", question))
        except ray.exceptions.RayError as e:
            raise PredictorLost(str(e)) from e
        if error is not None:
            raise RuntimeError(f"in the predictor:\n{value}")
        if value is None:
            raise PredictorLost("it has no weights")
        action, extras, after, self.generator.bit_generator.state = value
        return Act(action, {n: np.array(x) for n, x in extras.items()}, tree_map(np.array, after))


class CollectorRole(CollectorWorker):
    """Collects a chunk per order, with the weights that come with it."""

    def __init__(
        self, make_collector: MakeCollector, make_side: MakeCollectorSide, number: int
    ) -> None:
        super().__init__(make_collector, make_side)
        self.number = number

    def collect_for(self, env_steps: int, with_env: bool, predictor: Any, *weights: Any) -> Any:
        """Collect as ``collect`` does. None: the predictor was lost; the rows so far are kept for
        the next order.

        ``predictor``: the actor that selects actions; None: this role.
        """
        actor = self.collector.actor
        if predictor is not None:
            local = actor.local if isinstance(actor, RemoteActor) else actor
            generator = self.collector.policy.generator
            self.collector.actor = RemoteActor(local, predictor, self.number, generator)
        try:
            return self.collect(env_steps, *weights, with_env=with_env)
        except PredictorLost:
            return None


class CollectorThreads:
    """Collectors that share a process, a thread each, by their index in it.

    A step after a wait of 5 ms takes a process of its own several times the CPU time of a step
    without, probably because its caches are cold. Collectors of one process share what is in them.
    """

    def __init__(self, collectors: Sequence[CollectorRole]) -> None:
        self.collectors, self.calls = collectors, [0] * len(collectors)
        settings: Any = {"initializer": torch.set_flush_denormal, "initargs": (True,)}
        self.threads = [ThreadPoolExecutor(1, **settings) for _ in collectors]

    async def call(self, index: int, number: int, method: str, *arguments: Any) -> Any:
        """Return (class of an error, value) of call ``number`` of a collector.

        Ray may deliver a call before an earlier one whose weights are not here yet.
        """
        while self.calls[index] != number:
            await asyncio.sleep(ORDER_SECONDS)
        self.calls[index] += 1
        return await self._in_thread(index, method, *arguments)

    async def close(self) -> tuple[str | None, Any]:
        """Close the environments, each after the chunk that is being collected."""
        await asyncio.gather(*(self._in_thread(i, "close") for i in range(len(self.threads))))
        return None, None

    def _in_thread(self, index: int, method: str, *arguments: Any) -> "asyncio.Future[Any]":
        function = partial(attempt, getattr(self.collectors[index], method), *arguments)
        return asyncio.get_running_loop().run_in_executor(self.threads[index], function)


class EvaluatorRole:
    """Plays evaluation episodes in its own environments."""

    def __init__(self, evaluator: Evaluator, policy: Policy) -> None:
        """``policy``: receives the weights to evaluate."""
        self.evaluator, self.policy = evaluator, policy

    def run(self, weights: Weights, env_steps: int) -> Evaluation:
        """Return the evaluation of ``weights``."""
        self.policy.load({name: torch.from_numpy(np.array(w)) for name, w in weights.items()})
        return self.evaluator.run(self.policy, env_steps=env_steps)

    def close(self) -> None:
        self.evaluator.close()
