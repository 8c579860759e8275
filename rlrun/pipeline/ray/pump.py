"""Replies of Ray calls, each handed to what waits for it."""

import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from rlrun.pipeline.ray.messages import Blank, failure_in_ray

Handle = Callable[[Any], None]


class Lost:
    """The reply to a call will not come: the process, or an object it needs, is gone."""

    def __init__(self, error: Exception | None) -> None:
        """``error``: of Ray; None: another process, which lacks the state, has answered."""
        self.error = error

    @property
    def of_object(self) -> bool:
        """Return whether an object is gone that the call was given; the process is there."""
        from ray.exceptions import ObjectLostError

        return isinstance(self.error, ObjectLostError)

    def __str__(self) -> str:
        if self.error is None:
            return "its process has ended"
        text = str(self.error).split("\n")[0]
        return f"{type(self.error).__name__}: {text[:200]}"


class Pump:
    """Calls ``handle(reply)`` in this thread for every reply, and timers when they are due."""

    def __init__(self, check: Callable[[], None]) -> None:
        """``check``: called at every ``run``; raises when the cluster is gone."""
        self.check, self.handles = check, dict[Any, Handle]()
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.number, self.replies = count(), 0  # replies: handled so far

    def when(self, reply: Any, handle: Handle) -> None:
        """Call ``handle`` with the value of ``reply``, a ``RoleFailure`` or a ``Lost``."""
        self.handles[reply] = handle

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call ``call`` in so many seconds."""
        heapq.heappush(self.timers, (time.monotonic() + seconds, next(self.number), call))

    def run(self, timeout: float) -> bool:
        """Wait for a reply, at most so many seconds; handle all there are; False: none."""
        import ray

        self.check()
        now = time.monotonic()
        while self.timers and self.timers[0][0] <= now:
            heapq.heappop(self.timers)[2]()
        if self.timers:
            timeout = min(timeout, max(0.0, self.timers[0][0] - now))
        if not self.handles:
            time.sleep(min(timeout, 0.05))
            return False
        waiting = [*self.handles]
        ready, _ = ray.wait(waiting, num_returns=1, timeout=timeout)
        if ready and len(waiting) > 1:
            ready, _ = ray.wait(waiting, num_returns=len(waiting), timeout=0)
        for reply in ready:
            handle = self.handles.pop(reply, None)
            if handle is None:  # handled meanwhile, by a handler that waited for its own
                continue
            self.replies += 1
            try:
                value = ray.get(reply)
            except ray.exceptions.RayError as e:
                value = failure_in_ray(e) or Lost(e)
            handle(Lost(None) if isinstance(value, Blank) else value)
        return bool(ready)

    def wait(self, reply: Any) -> Any:
        """The value of one reply, or a ``Lost``; others are handled meanwhile."""
        found: list[Any] = []
        self.when(reply, found.append)
        while not found:
            self.run(0.25)
        return found[0]
