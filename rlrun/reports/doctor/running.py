"""Rules on how the run went: failures, damage, time."""

import math

from rlrun.reports.doctor.evidence import PARTS, Evidence
from rlrun.reports.doctor.finding import BROKEN, HARMFUL, NOTE, Finding, Rule, steps

_SLOW_SECONDS = 60.0  # shorter runs are as fast as they need to be


def failed(e: Evidence) -> Finding | None:
    """The run ended with an error, which rlrun.log has."""
    if e.run.status != "failed":
        return None
    why = e.run.failure or f"exit code {e.run.exit_code}"
    return Finding(
        BROKEN, f"The run failed at {steps(e.env_steps)}: {why}", "Its last line says what to do.",
        [f"rlrun resume {e.run.path}, once that is done"], ("rlrun.log",),
    )  # fmt: skip


def interrupted(e: Evidence) -> Finding | None:
    """The run was stopped by a signal or run.max_time and can go on."""
    unstarted = e.run.status == "not started" and bool(e.policy)
    if unstarted and not e.env_steps:
        return Finding(
            NOTE, "It made no step: there is no run.json.",
            "It was interrupted while it started, or is starting.",
            [f"rlrun resume {e.run.path}, unless it is starting"], ("rlrun.log",),
        )  # fmt: skip
    if e.run.status != "interrupted":
        return None
    return Finding(
        NOTE, f"It was interrupted at {steps(e.env_steps)} of {e.total_steps:.0f}.",
        "A resumed run gives the same records as one that was not interrupted.",
        [f"rlrun resume {e.run.path}"], ("run.json",),
    )  # fmt: skip


def damaged(e: Evidence) -> Finding | None:
    """Files cannot be read whole."""
    what = e.run.problem or e.run.damage or e.run.damaged_times
    if not what:
        return None
    return Finding(
        BROKEN, f"Its files are damaged: {what.rstrip('.')}.",
        "What follows the damage was not looked at.",
        [f"rlrun verify {e.run.path}"], ("metrics.jsonl",),
    )  # fmt: skip


def restarts(e: Evidence) -> Finding | None:
    """Environments were started again after their process failed."""
    metrics = e.metric("collect/restarts"), e.metric("eval/restarted_episodes")
    if not any(map(len, metrics)):
        return None
    times = sum(metric.values.sum() for metric in metrics)
    first = min(float(metric.env_steps[0]) for metric in metrics if len(metric))
    return Finding(
        HARMFUL, f"Environments failed and were restarted {times:.0f} times, first by "
        f"{steps(first)}.",
        "Each restart cuts an episode, which does not count; the first error is in rlrun.log.",
        [*e.set("env.on_worker_failure", "stop"), *e.set("env.backend", "sync")],
        ("collect/restarts", "eval/restarted_episodes", "rlrun.log"),
    )  # fmt: skip


def slow(e: Evidence) -> Finding | None:
    """Of a minute or more, most of the time went into what is not training.

    Evaluation above 40 %, checkpoints above 15 %, records above 10 %: each can be had at less than
    a tenth of it by a longer period.
    """
    columns = e.times.columns
    spent = {p: float(columns[f"time/{p}_seconds"][1].max(initial=0.0)) for p in PARTS}
    total = sum(spent.values())
    if total < _SLOW_SECONDS or not math.isfinite(total):
        return None
    for part, most, key, what in (
        ("eval", 0.4, "run.eval_every", "evaluations"),
        ("checkpoint", 0.15, "run.checkpoint_every", "checkpoints"),
        ("log", 0.1, "logger.every", "records"),
    ):
        share = spent[part] / total
        if share > most:
            tries = e.scaled(key, max(2, round(share / 0.1)))
            tries += e.scaled("run.eval_episodes", 0.4) if part == "eval" else []
            return Finding(
                NOTE, f"{share:.0%} of the time goes into {what} ({spent[part]:.0f} of {total:.0f} "
                "seconds).",
                "Training waits for them.", tries, (f"time/{part}_seconds", "time/env_steps_per_s"),
            )  # fmt: skip
    return None


RULES = (
    Rule("failed", failed),
    Rule("damaged", damaged, ("no updates",)),
    Rule("interrupted", interrupted),
    Rule("restarts", restarts),
    Rule("slow", slow),
)
