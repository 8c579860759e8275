"""The loop over roles: the serial pipeline's, with its parts elsewhere."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rlrun.errors import ResourceError
from rlrun.pipeline.ray.async_source import AsyncSource
from rlrun.pipeline.ray.remote_evaluator import RemoteEvaluator, weights_of
from rlrun.pipeline.ray.remote_learner import RemoteLearner
from rlrun.pipeline.serial import CHECKPOINTS, Pipeline, Result
from rlrun.pipeline.stop import StopRequest
from rlrun.rundir import checkpoint


@dataclass(slots=True)
class RayPipeline(Pipeline):
    """``Pipeline.run`` with remote parts; ``policy`` is a copy that follows the learner's.

    Not in rounds: an evaluation is under way while training goes on, and is recorded at the env
    step of its weights when it is done. One that falls due meanwhile is left out.
    """

    under_way: tuple[int, dict[str, np.ndarray]] | None = None  # env steps, weights
    evaluated: list[Any] = field(default_factory=list)  # its result, until it is recorded

    @property
    def remote_learner(self) -> RemoteLearner:
        assert isinstance(self.learner, RemoteLearner)
        return self.learner

    def run(self, stop: StopRequest) -> Result:
        """As ``Pipeline.run``. Raises: ResourceError when the cluster is lost; nothing is saved."""
        self.remote_learner.roles.stop = stop
        try:
            return Pipeline.run(self, stop)
        except ResourceError as e:
            earlier = checkpoint.list_checkpoints(self.run_dir / CHECKPOINTS)
            if earlier:
                newest = f"the newest checkpoint is {earlier[-1].name}"
                e.args = (f"{e}; {newest}; go on: rlrun resume {self.run_dir}",)
            raise

    def _learn(self, rows: int, keys: np.ndarray) -> None:
        Pipeline._learn(self, rows, keys)
        if self.evaluated:
            self._record_under_way()

    def _evaluate(self, stop: StopRequest) -> None:
        done = self.counters.env_steps >= self.run_config.total_steps or self.solved
        if done or not isinstance(self.source, AsyncSource):
            self._finish_evaluation(stop)
            self._take_stored()  # nothing comes after the last evaluation
            Pipeline._evaluate(self, stop)
            ends = self.counters.env_steps >= self.run_config.total_steps or self.solved
            if isinstance(self.source, AsyncSource) and not ends:  # an older result had solved it
                self.source.go_on()
        elif self.under_way is None:
            self._require_finite()
            steps = self.counters.env_steps
            self.under_way = steps, weights_of(self.policy)
            assert isinstance(self.evaluator, RemoteEvaluator)
            self.pending_evaluation = True
            self.evaluator.start(self.under_way[1], steps, self.evaluated.append)

    def _finish_evaluation(self, stop: StopRequest) -> None:
        """Wait for the evaluation that is under way."""
        while self.under_way is not None and not stop():
            if self.evaluated:
                self._record_under_way()
            else:
                self.remote_learner.roles.pump.run(0.25)

    def _record_under_way(self) -> None:
        assert self.under_way is not None
        steps, weights = self.under_way
        self.under_way, self.pending_evaluation = None, False
        own = {name: torch.from_numpy(w) for name, w in weights.items()}
        self.policy.load(own)  # the best ones are saved; ``sync`` brings the present ones back
        self._record_evaluation(self.evaluated.pop(), steps)

    def _require_finite(self) -> None:
        self.remote_learner.sync()
        Pipeline._require_finite(self)

    def _take_stored(self) -> None:
        """Count what is stored, and learn what it pays for, as the loop would have done."""
        if not isinstance(self.source, AsyncSource):
            return
        while chunks := self.source.quiesce():
            for chunk in chunks:
                before = self.counters.env_steps
                self.source.count(chunk.info)
                self._learn(self.counters.env_steps - before, self._store([chunk]))

    def state_dict(self) -> dict[str, Any]:
        self._take_stored()
        self.remote_learner.sync()
        state = Pipeline.state_dict(self)
        if isinstance(self.source, AsyncSource):
            self.source.go_on()
        return state | {"backends": self.remote_learner.saved["backends"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As ``Pipeline.load_state_dict``, once nothing of a run that is given up is under way."""
        assert isinstance(self.evaluator, RemoteEvaluator)
        self.evaluator.abandon()
        self.under_way = None
        self.evaluated.clear()
        self.remote_learner.abandon()
        Pipeline.load_state_dict(self, state)
