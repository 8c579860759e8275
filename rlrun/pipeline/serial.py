"""The serial pipeline: collect, learn, evaluate, save, in one visible loop."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.buffer.rollout import Rollout
from rlrun.errors import CheckpointError
from rlrun.log import Log
from rlrun.pipeline.bonus import RND
from rlrun.pipeline.collector import Collector
from rlrun.pipeline.evaluate import Evaluator, eval_metrics
from rlrun.pipeline.learner import Learner, RolloutLearner
from rlrun.pipeline.profile import Profiler
from rlrun.pipeline.stop import StopWish, stop_wish
from rlrun.rundir import checkpoint, history
from rlrun.schema import LoggerConfig, RunConfig
from rlrun.transport import Local
from rlrun.types import Chunk, Counters, Policy

CHECKPOINTS = "checkpoints"


@dataclass(slots=True)
class Result:
    """How a run ended. ``stopped``: exit code of the signal that ended it, None: it is done."""

    final: dict[str, float] | None  # summary of the final weights, where they were evaluated
    best: dict[str, float] | None
    stopped: int | None


@dataclass(slots=True)
class Serial:
    """Strictly alternating and deterministic: weights never change while rows are collected."""

    clock: ClassVar[str] = "env steps"  # what ``env_steps`` counts

    run_config: RunConfig
    logger: LoggerConfig
    run_dir: Path
    collector: Collector
    policy: Policy
    buffer: Replay | Mixed | Rollout | None  # None: the policy does not learn
    learner: Learner | RolloutLearner | None
    evaluator: Evaluator
    log: Log
    counters: Counters
    profiler: Profiler | None = None
    versions: int = 0  # past weights kept (checkpoint.history)
    link: Local | None = None  # between learner and collector; None: they share one policy
    bonus: RND | None = None  # the learner adds it to rewards
    best: dict[str, float] | None = None  # summary of the best evaluation so far
    hits: int = 0  # successive evaluations at stop_value
    last: dict[str, float] | None = None  # summary of the last evaluation
    owed: bool = False  # a signal came during an evaluation: whoever goes on begins with it
    unsaved: bool = True  # something has happened since the last checkpoint
    seconds: dict[str, float] = field(default_factory=dict)
    kept: history.HistorySize | None = None  # what the past weights took when last saved

    def run(self) -> Result:
        """Collect until total_steps, stop_value or a signal; the last state is always saved."""
        c, counters = self.run_config, self.counters
        with stop_wish() as wish:
            if self.owed:
                self._evaluate(wish)
                self._save()  # so that it is told once
            while counters.env_steps < c.total_steps and wish.code is None and not self._solved():
                before = counters.env_steps
                self._collect_and_learn()
                if self.profiler is not None:
                    self.profiler.step(counters.updates)
                if self._due(self.logger.every, before):
                    self._log()
                if self._due(c.eval_every, before):
                    self._evaluate(wish)
                if self._due(c.checkpoint_every, before):
                    self._save()
            if wish.code is None and not self._evaluated():
                self._evaluate(wish)
            if self.unsaved:
                self._save()
            if self.profiler is not None:
                self.profiler.stop()
        final = self.last if self._evaluated() else None
        return Result(final, self.best, wish.code)

    def close(self) -> None:
        """Give back the environments."""
        self.collector.env.close()
        self.evaluator.close()

    def _collect_and_learn(self) -> None:
        start, before = time.perf_counter(), self.counters.env_steps
        chunk = self._next_chunk()
        self.unsaved = True
        self._spent("collect", start)
        start, keys = time.perf_counter(), None
        if self.buffer is not None:
            keys = self.buffer.add(chunk)
        self._spent("add", start)
        if self.bonus is not None:
            start = time.perf_counter()
            self.bonus.see(chunk)
            self._spent("bonus", start)
        if self.learner is not None and keys is not None:
            self.learner.step(self.counters.env_steps - before, keys)
        if self.bonus is not None:  # only now: the chunk is as new as it was when it came
            start = time.perf_counter()
            self.bonus.learn(self.counters.env_steps)
            self._spent("bonus", start)
        self.log.progress(self.counters.env_steps, self.counters.updates)

    def _next_chunk(self) -> Chunk:
        if self.link is None:
            return self.collector.collect()
        self.collector.policy.load(self.link.weights(self.policy.weights()))
        return self.link.rows(self.collector.collect())

    def _due(self, every: int, before: int) -> bool:
        return self.counters.env_steps // every > before // every

    def _solved(self) -> bool:
        return self.run_config.stop_value is not None and self.hits >= self.run_config.stop_after

    def _evaluated(self) -> bool:
        """Whether the present weights are those last evaluated."""
        return self.last is not None and self.last["env_steps"] == self.counters.env_steps

    def _log(self) -> None:
        start, steps = time.perf_counter(), self.counters.env_steps
        metrics = self._collected()
        if self.buffer is not None and self.learner is not None:
            metrics |= self.learner.metrics() | self.buffer.metrics(steps)
        if self.bonus is not None:
            metrics |= self.bonus.metrics()
        self.log.write(steps, metrics)
        names = {"collect/return_mean": "return", "collect/epsilon_mean": "epsilon"}
        shown = {short: metrics[name] for name, short in names.items() if name in metrics}
        self.log.progress(steps, self.counters.updates, **shown)
        self._spent("log", start)
        spent = {f"time/{name}_seconds": value for name, value in self.spent.items()}
        self.log.write_timings(steps, spent | self._coded())

    def _coded(self) -> dict[str, float]:
        """codec/ metrics. They are told with ``time/``: coded or not, a run has the same digest."""
        found = self._link_metrics() | (self.buffer.coded() if self.buffer is not None else {})
        if self.kept is not None:
            found["codec/history_ratio"] = self.kept.coded / self.kept.raw
            found["codec/history_bytes"] = float(self.kept.coded)
        return found

    def _link_metrics(self) -> dict[str, float]:
        return self.link.metrics() if self.link is not None else {}

    def _collected(self) -> dict[str, float]:
        return self.collector.metrics()

    @property
    def spent(self) -> dict[str, float]:
        """Seconds since this process began by part; act, env are part of collect, forward,
        backward, optimiser of update."""
        spent = self.seconds | self.collector.seconds
        if self.learner is not None:
            parts = self.policy.seconds
            spent |= self.learner.seconds | parts
            spent["forward"] = max(0.0, spent["update"] - sum(parts.values()))
        return spent

    def _evaluate(self, wish: StopWish) -> None:
        """Unless a signal comes: then it is ``owed``, and nothing of it is kept."""
        start, steps = time.perf_counter(), self.counters.env_steps
        found = self.evaluator.run_unless(
            lambda: wish.code is not None, self.policy, env_steps=steps
        )
        self.owed, self.unsaved = found is None, True
        if found is not None:
            self._judge(found.summary(), steps)
        self._spent("eval", start)

    def _judge(self, summary: dict[str, float], steps: int) -> None:
        self.last, stop = summary, self.run_config.stop_value
        if self.best is None or summary["return_mean"] > self.best["return_mean"]:
            self.best = summary
            path = self.run_dir / CHECKPOINTS / "best.safetensors"
            checkpoint.save_weights(path, self.policy.weights(), summary)
        self.hits = self.hits + 1 if stop is not None and summary["return_mean"] >= stop else 0
        best = {"eval/best_return_mean": self.best["return_mean"]}
        found = self.learner.diagnose() if self.learner is not None else {}
        self.log.write(steps, eval_metrics(summary) | best | found)
        self.log.progress(steps, self.counters.updates, eval=summary["return_mean"])

    def _save(self) -> None:
        start, steps = time.perf_counter(), self.counters.env_steps
        self.log.sync()
        directory = self.run_dir / CHECKPOINTS
        meta = {"env_steps": steps, "updates": self.counters.updates}
        checkpoint.save_weights(directory / "last.safetensors", self.policy.weights(), meta)
        if self.versions and self.learner is not None:
            self.kept = history.save(
                directory / history.DIRECTORY, self.policy.weights(),
                env_steps=steps, updates=self.counters.updates, keep=self.versions,
            )  # fmt: skip
        keep = self.run_config.keep_checkpoints
        checkpoint.save(directory, self.state_dict(), env_steps=steps, keep=keep)
        self.unsaved = False
        self._spent("checkpoint", start)

    def _spent(self, name: str, start: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        """Everything the rest of the run depends on, but the environments."""
        counters = self.counters
        state: dict[str, Any] = {
            "counters": {n: getattr(counters, n) for n in counters.__slots__},
            "policy": self.policy.state_dict(),
            "collector": self.collector.state_dict(),
            "best": self.best,
            "last": self.last,
            "hits": self.hits,
            "owed": self.owed,
        }
        if self.buffer is not None and self.learner is not None:
            state |= {"buffer": self.buffer.state_dict(), "learner": self.learner.state_dict()}
        if self.bonus is not None:
            state["bonus"] = self.bonus.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["counters"].items():
            setattr(self.counters, name, value)
        self.policy.load_state_dict(state["policy"])
        self._load_collector(state)
        self.best, self.last, self.hits = state["best"], state["last"], state["hits"]
        self.owed, self.unsaved = state.get("owed", False), False
        if self.buffer is not None and self.learner is not None:
            self.buffer.load_state_dict(state["buffer"])
            self.learner.load_state_dict(state["learner"])
        if self.bonus is not None:
            self.bonus.load_state_dict(state["bonus"])

    def _load_collector(self, state: dict[str, Any]) -> None:
        if "flight" in state:
            raise CheckpointError(
                "pipeline.name = serial: the checkpoint holds a chunk in flight; allowed is the "
                "pipeline the run began with; set pipeline=overlapped"
            )
        self.collector.load_state_dict(state["collector"])
