"""Versions of the weights: kept by the driver, sent to the predictor."""

from typing import Any

from rlrun.codec import NeedKeyFrame
from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.roles import RETRY_SECONDS, Roles
from rlrun.pipeline.ray.traffic import RoleTraffic
from rlrun.types import Counters

POLL_SECONDS = 0.25


class Publication:
    """Publishes messages of the learner. Collectors get them with their orders."""

    def __init__(
        self, roles: Roles, traffic: RoleTraffic, counters: Counters, *, rounds: bool
    ) -> None:
        """``rounds``: the predictor has a version before anyone goes on."""
        self.roles, self.traffic, self.counters, self.rounds = roles, traffic, counters, rounds
        self.asked = False  # the learner, for a frame that the predictor can decode
        self.loading = 0  # versions that the predictor has not loaded
        self._watch_predictor()

    def publish(self, frame: Any) -> None:
        """Make ``frame`` the newest version, for all who order or act from now on."""
        version = self.roles.frames.add(frame)
        self.traffic.note_version(version, self.counters.env_steps)
        if self.roles.predictor is not None:
            self._tell_predictor()

    def _tell_predictor(self) -> None:
        """Send the newest weights to the predictor; in rounds, wait until it has them."""
        self.loading += 1
        self._send_newest()
        while self.rounds and self.loading:
            self.roles.pump.run(POLL_SECONDS)

    def _send_newest(self) -> None:
        frames = self.roles.frames
        self._send(*frames.since(frames.newest - 1)[-1])

    def _send(self, version: int, frame: Any) -> None:
        predictor = self.roles.predictor
        assert predictor is not None
        reply = predictor.handle.load.remote((version,), frame)
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
            self._later()
            return
        need = self.roles.value(predictor, reply)
        if need is None or self.asked:  # the answer that is under way brings what is missing
            self.loading -= 1
            return
        self.asked = True
        request = NeedKeyFrame(need.stream, need.have_seq, need.have_hash)
        answer = self.roles.learner.handle.answer.remote(request)
        self.roles.pump.when(answer, self._answered)

    def _answered(self, frame: Any) -> None:
        """Take the learner's answer: a frame that the predictor can decode."""
        self.asked = False
        if isinstance(frame, Lost):
            self.roles.lost(self.roles.learner, frame)
            self._later()
        elif self.roles.value(self.roles.learner, frame) is None:  # too soon
            self._later()
        else:
            self._send(self.roles.frames.newest, frame)

    def _later(self) -> None:
        """Send the weights again, once a role that is being restarted may be there."""
        self.roles.pump.after(RETRY_SECONDS, self._send_newest)

    def _publish_first(self) -> None:
        """Publish the present weights, of which no version was made so far."""
        _, frame = self.roles.ask(self.roles.learner, "frame")
        self.publish(frame)
