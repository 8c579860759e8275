"""When a run is evaluated, what comes of it, and whether the task is solved."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlrun.buffer.saved import MOST_ROWS, integer, reason
from rlrun.pipeline.evaluate import Evaluation, eval_metrics, loaded_summary
from rlrun.pipeline.parts import Parts, require_finite
from rlrun.pipeline.state import generators_state, load_generators
from rlrun.pipeline.stop import StopRequest
from rlrun.run import checkpoint
from rlrun.run.files import require_in_place
from rlrun.run.manifest import CHECKPOINTS
from rlrun.schema import RunConfig


@dataclass(slots=True)
class LoopEvaluations:
    """The evaluations of a run: every ``run.eval_every`` env steps, and of the final weights."""

    config: RunConfig
    parts: Parts
    ready: Callable[[], bool] = lambda: True  # whether a due evaluation need not wait
    best: dict[str, float] | None = None  # summary of the best one so far
    last: dict[str, float] | None = None  # summary of the last one
    consecutive_solved: int = 0  # successive ones at stop_value
    pending: bool = False  # a signal interrupted one; a resumed run begins with it
    waiting: bool = False  # a due one, for ``ready``
    inexact: str | None = None  # why one was not what it would be without a disturbance

    @property
    def solved(self) -> bool:
        """True once the last ``stop_after`` evaluations reached ``stop_value``."""
        goal = self.config.stop_value
        return goal is not None and self.consecutive_solved >= self.config.stop_after

    @property
    def current(self) -> bool:
        """True where the present weights are those last evaluated."""
        steps = self.parts.progress.counters.env_steps
        return self.last is not None and self.last["env_steps"] == steps

    def after_chunk(self, before: int, stop: StopRequest) -> None:
        """Evaluate if it is due since env step ``before``, or was due and is ready now."""
        due = self.parts.progress.due(self.config.eval_every, before)
        if due or self.waiting:
            ready, again = self.ready(), due and self.waiting
            self.waiting = not (ready or again)
            if not self.waiting:
                self.evaluate(stop)

    def evaluate(self, stop: StopRequest) -> None:
        """Evaluate the present weights; pending, without results, when a signal interrupts it."""
        require_finite(self.parts)
        p, steps = self.parts, self.parts.progress.counters.env_steps
        before = p.policy.generator.bit_generator.state, generators_state()
        self.pending, p.progress.unsaved, p.progress.phase = True, True, "evaluate"
        with p.progress.part("eval"):
            evaluation = p.evaluator.run_until(stop, p.policy, env_steps=steps)
            self.pending = evaluation is None
            if evaluation is not None:
                self.record(evaluation, steps)
            else:  # it will be repeated, with the same random numbers
                p.policy.generator.bit_generator.state = before[0]
                load_generators(before[1])

    def record(self, evaluation: Evaluation, steps: int) -> None:
        """Log an evaluation of the policy's weights of env step ``steps``; keep the best ones."""
        p, goal = self.parts, self.config.stop_value
        require_in_place(p.run_dir)
        summary = evaluation.summary()
        self.inexact, self.last = self.inexact or evaluation.inexact, summary
        if self.best is None or summary["return_mean"] > self.best["return_mean"]:
            self.best = summary
            path = p.run_dir / CHECKPOINTS / "best.safetensors"
            checkpoint.save_weights(path, p.policy.weights(), summary)
        solved = goal is not None and summary["return_mean"] >= goal
        self.consecutive_solved = self.consecutive_solved + 1 if solved else 0
        best = {"eval/best_return_mean": self.best["return_mean"]}
        diagnosis = p.learner.diagnose() if p.learner is not None else {}
        p.log.write(steps, eval_metrics(summary) | best | diagnosis)
        p.log.progress(steps, p.progress.counters.updates, eval=summary["return_mean"])

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "last": self.last,
            "consecutive_solved": self.consecutive_solved,
            "pending": self.pending,
            "waiting": self.waiting,
            "inexact_evaluation": self.inexact,
            "stop_value": self.config.stop_value,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.last = (loaded_summary(state[name]) for name in ("best", "last"))
        same_goal = state["stop_value"] == self.config.stop_value
        solved = integer("consecutive_solved", state["consecutive_solved"], 0, MOST_ROWS)
        self.consecutive_solved = solved if same_goal else 0
        self.pending, self.waiting = bool(state["pending"]), bool(state["waiting"])
        if self.waiting:
            self.ready()  # the collector is to end its episode
        self.inexact = reason("inexact_evaluation", state["inexact_evaluation"])
