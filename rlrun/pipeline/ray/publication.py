"""Versions of the weights: kept by the driver, sent to the predictor."""

from typing import Any

from rlrun.codec import NeedKeyFrame
from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.roles import RETRY_SECONDS, Roles
from rlrun.pipeline.ray.traffic import RoleTraffic
from rlrun.types import Counters


class Publication:
    """Publishes messages of the learner. Collectors get them with their orders."""

    def __init__(
        self, roles: Roles, traffic: RoleTraffic, counters: Counters, *, rounds: bool
    ) -> None:
        """``rounds``: the predictor has a version before anyone goes on."""
        self.roles, self.traffic, self.counters, self.rounds = roles, traffic, counters, rounds
        self._watch_predictor()

    def publish(self, frame: Any) -> None:
        """Make ``frame`` the newest version, for all who order or act from now on."""
        version = self.roles.frames.add(frame)
        self.traffic.publish(version, self.counters.env_steps)
        if self.roles.predictor is not None:
            self._tell_predictor()

    def _tell_predictor(self) -> None:
        """Send the newest weights to the predictor; in rounds, wait until it has them."""
        predictor, frames = self.roles.predictor, self.roles.frames
        assert predictor is not None
        version, frame = frames.since(frames.newest - 1)[-1]
        reply = predictor.handle.load.remote((version,), frame)
        if self.rounds:
            self._predictor_loaded(self.roles.pump.wait(reply))
        else:
            self.roles.pump.when(reply, self._predictor_loaded)

    def _watch_predictor(self) -> None:
        """Send the weights again to a predictor that was restarted."""
        predictor = self.roles.predictor
        if predictor is None:
            return

        def ended(reply: Any) -> None:
            self.roles.note_lost(predictor, reply)
            self.roles.pump.after(RETRY_SECONDS, self._watch_predictor)
            if self.roles.frames.count:
                self._tell_predictor()
            else:
                self._publish_first()

        self.roles.pump.when(predictor.handle.lives.remote(), ended)

    def _predictor_loaded(self, reply: Any) -> None:
        predictor = self.roles.predictor
        assert predictor is not None
        if isinstance(reply, Lost):
            self.roles.pump.after(RETRY_SECONDS, self._tell_predictor)
            return
        need = self.roles.value(predictor, reply)
        if need is None:
            return
        request = NeedKeyFrame(need.stream, need.have_seq, need.have_hash)
        frame = self.roles.ask(self.roles.learner, "answer", request)
        if frame is None:
            self.roles.pump.after(RETRY_SECONDS, self._tell_predictor)
            return
        load = predictor.handle.load.remote((self.roles.frames.newest,), frame)
        self._predictor_loaded(self.roles.pump.wait(load))

    def _publish_first(self) -> None:
        """Publish the present weights, of which no version was made so far."""
        _, frame = self.roles.ask(self.roles.learner, "frame")
        self.publish(frame)
