"""The collector's role."""

from typing import Any

from rlrun.pipeline.overlapped import CollectorWorker, MakeCollector, MakeCollectorSide
from rlrun.pipeline.ray.predicting import PredictorLost, RemoteActor


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
