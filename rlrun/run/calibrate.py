"""The cost of one update under each setting of threads and precision, on this machine.

``rlrun doctor --calibrate`` prints it. No run calls it: its settings follow from the config alone.
"""

import multiprocessing
import os
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from rlrun.config.checks.keys import bf16_fault
from rlrun.errors import ResourceError, RlrunError, error_named, known_error
from rlrun.pipeline.collector import Collector
from rlrun.pipeline.learner import Learner
from rlrun.policy.compute import Precision
from rlrun.run.build import make_collector, make_policy, make_replay, prepare_process
from rlrun.run.plan import Plan, make_plan
from rlrun.schema import Config
from rlrun.trust import trust_only, trusted
from rlrun.types import Chunk, Counters, tree_map

TOTAL_SECONDS = 10.0  # of all settings by default: with start-up and filling about 20
MAX_SECONDS = 1.5  # of one setting by default
REPEATS = 5  # of every setting
FILL_SECONDS = 2.0  # after which one window is enough
EXIT_SECONDS = 5.0  # a process may take to end by itself
_NO_KEYS = np.empty(0, np.int64)


@dataclass(frozen=True)
class ComputeSetting:
    """Keys that change the duration of an update and are no hyperparameters."""

    threads: int
    target_thread: bool | None  # None: the policy has no use for one
    precision: Precision

    def overrides(self) -> str:
        """The setting as overrides of a command line."""
        words = [f"learner.threads={self.threads}"]
        if self.target_thread is not None:
            words.append(f"learner.target_thread={str(self.target_thread).lower()}")
        return " ".join([*words, f"learner.precision={self.precision}"])

    def of(self, config: Config) -> Config:
        """``config`` with this setting, and one update for every ``Learner.step``."""
        learner = replace(
            config.learner, threads=self.threads, target_thread=self.target_thread,
            precision=self.precision, update_per_collect=1, replay_ratio=None, learning_starts=0,
        )  # fmt: skip
        return replace(config, learner=learner)


@dataclass(frozen=True)
class Cost:
    """Milliseconds an update took, one value for every repeat."""

    setting: ComputeSetting
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def span(self) -> str:
        return f"{min(self.values):.3g}..{max(self.values):.3g}"


Measure = Callable[[Config, Sequence[ComputeSetting], float], list[list[float]]]


def chosen_setting(config: Config) -> ComputeSetting:
    """The setting of a run of ``config``: its keys, or the plan's rule where they are null."""
    plan = make_plan(config)
    target = plan.target_thread if plan.target_thread_used else None
    return ComputeSetting(plan.threads, target, config.learner.precision)


def settings(config: Config, cores: int) -> list[ComputeSetting]:
    """The settings to measure on ``cores`` cores, that of ``chosen_setting`` included.

    Threads in powers of two; on a GPU only the precision, where threads hardly matter. No bf16
    where this machine cannot learn in it.
    """
    chosen = chosen_setting(config)
    threads, targets = {chosen.threads}, {chosen.target_thread}
    if config.device == "cpu":
        threads |= {2**i for i in range(cores.bit_length())} | {cores}
        if chosen.target_thread is not None and cores > 1:
            targets = {False, True}
    precisions: list[Precision] = ["float32"] if bf16_fault(config) else ["float32", "bf16"]
    return [
        ComputeSetting(count, target, precision)
        for precision in precisions
        for target in sorted(targets, key=bool)
        for count in sorted(threads)
    ]


# -- measuring -------------------------------------------------------------------------------------


def measure(config: Config, tried: Sequence[ComputeSetting], seconds: float) -> list[list[float]]:
    """Milliseconds an update takes (sampled, learned from, prioritized), of each setting repeats.

    In memory only: ``buffer.mmap``, ``buffer.load`` and ``buffer.demos`` are left out.
    """
    config = replace(config, buffer=replace(config.buffer, mmap=None, load=None, demos=None))
    plan = make_plan(config)
    collector = make_collector(plan, Counters())
    benches: list[Bench] = []
    try:
        chunks = _collect(plan, collector)
        for setting in tried:
            benches.append(Bench(make_plan(setting.of(config)), chunks))
        return interleave(benches, seconds)
    finally:
        collector.env.close()
        for bench in benches:
            bench.close()


def _collect(plan: Plan, collector: Collector) -> list[Chunk]:
    """Collect chunks of a batch of windows; of one window at least where that takes long."""
    config, replay = plan.config, make_replay(plan)
    chunks: list[dict[str, Any]] = []
    start = time.perf_counter()
    while len(replay) < config.learner.batch_size and replay.rows < config.buffer.capacity:
        chunk = collector.collect()
        replay.add(chunk)
        chunks.append(tree_map(np.array, asdict(chunk)))  # the collector reuses a chunk's arrays
        if len(replay) and time.perf_counter() - start > FILL_SECONDS:
            break
    return [Chunk(**fields) for fields in chunks]


class Bench:
    """One setting's learner in a process of its own, as a run has.

    In one process for all, the threads of one setting would change how those of the next wait for
    each other (OpenMP counts them all), by a factor of two.
    """

    def __init__(self, plan: Plan, chunks: Sequence[Chunk]) -> None:
        """``chunks``: the rows of the replay."""
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context(
            "forkserver" if "forkserver" in methods else "spawn"
        )
        if "forkserver" in methods:
            context.set_forkserver_preload([__name__])  # torch is imported once
        self.pipe, child = context.Pipe()
        arguments = child, trusted(), plan, chunks
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        child.close()

    def __call__(self, updates: int) -> float:
        """Mean milliseconds of ``updates`` updates."""
        try:
            self.pipe.send(updates)
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(EXIT_SECONDS)
            raise ResourceError(
                f"rlrun doctor: the process of a setting ended (exit code {self.process.exitcode}),"
                " perhaps for lack of memory: there is one process per setting; free some memory"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return float(answer)

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join(EXIT_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _serve(pipe: Connection, packages: Sequence[str], plan: Plan, chunks: Sequence[Chunk]) -> None:
    """Main function of the process: time updates until the pipe is closed."""
    trust_only(packages)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends this one
    learner: Learner | None = None
    while True:
        try:
            updates = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            learner = learner or make_learner(plan, chunks)
            answer: float | Exception = time_updates(learner, updates)
        except RlrunError as e:
            answer = error_named(known_error(e), str(e)) or e
        except MemoryError as e:
            answer = MemoryError(str(e))
        except Exception as e:
            answer = RuntimeError(f"{type(e).__name__}: {e}")
            answer.add_note(traceback.format_exc())
        try:
            pipe.send(answer)
        except OSError:
            return


def make_learner(plan: Plan, chunks: Sequence[Chunk]) -> Learner:
    """Make a run's learner with ``chunks`` in its replay, and set torch's threads."""
    prepare_process(plan)
    policy, replay = make_policy(plan), make_replay(plan)
    for chunk in chunks:
        replay.add(chunk)
    counters = Counters(env_steps=replay.rows)
    return Learner(
        plan.config.learner, policy=policy, buffer=replay, counters=counters, td_priority=False
    )


def time_updates(learner: Learner, updates: int) -> float:
    """Mean milliseconds of one update."""
    start = time.perf_counter()
    for _ in range(updates):
        learner.step(0, _NO_KEYS)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3 / updates


Block = Callable[[int], float]  # updates -> mean milliseconds of one


def interleave(blocks: Sequence[Block], seconds: float) -> list[list[float]]:
    """Run all blocks in rounds, forwards and backwards, so that drifts cancel; return their times.

    Two rounds at least, then as many as fit into ``seconds`` for each block.
    """
    for block in blocks:
        block(1)  # allocates and compiles
    start = time.perf_counter()
    updates = [max(1, round(seconds * 1e3 / REPEATS / block(1))) for block in blocks]
    values: list[list[float]] = [[] for _ in blocks]
    rounds, took = 0, 0.0
    while rounds < 2 or time.perf_counter() + took < start + seconds * len(blocks):
        began = time.perf_counter()
        order = range(len(blocks))
        for i in order if rounds % 2 == 0 else reversed(order):
            if updates[i] > 1:
                blocks[i](1)  # threads wake, caches fill
            values[i].append(blocks[i](updates[i]))
        rounds, took = rounds + 1, time.perf_counter() - began
    return values


# -- printing --------------------------------------------------------------------------------------


def lines(
    config: Config, *, cores: int, seconds: float | None, measure: Measure = measure
) -> Iterator[str]:
    """Yield a title at once, then a table and the fastest settings as overrides.

    ``seconds`` of one setting; None: about 20 s in all.
    """
    tried = settings(config, cores)
    each = min(MAX_SECONDS, TOTAL_SECONDS / len(tried)) if seconds is None else seconds
    yield _title(config, cores, len(tried), each)
    backend = make_plan(config).backend
    yield f"backend {backend.name}: {backend.reason}"
    yield from _busy()
    fault = bf16_fault(config)
    if fault is not None:
        yield f"bf16 is left out: {fault}"
    values = measure(config, tried, each)
    costs = [Cost(s, v) for s, v in zip(tried, values, strict=True)]
    chosen = chosen_setting(config)
    yield from _table(costs, chosen)
    yield from _advice(costs, chosen)


def _title(config: Config, cores: int, count: int, seconds: float) -> str:
    memory, batch = config.memory, config.learner.batch_size
    cell = "" if memory.name == "none" else f", {memory.name} {memory.hidden}"
    what = f"{config.policy.name} on {config.env.id}, {batch} windows{cell}"
    where = f"{cores} cores" if config.device == "cpu" else config.device
    return f"one update of {what}; {where}; {count} settings, {seconds:.3g} s each"


def _busy() -> Iterator[str]:
    """Warn about other load on the machine, which slows several threads most."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load >= 0.5:
        yield f"load {load:.1f}: other work slows this, more threads most; best on an idle machine"


def _table(costs: Sequence[Cost], chosen: ComputeSetting) -> Iterator[str]:
    head = ("threads", "target_thread", "precision", "ms", "range")
    cells = [head, *(_cells(cost) for cost in costs)]
    width = [max(len(line[i]) for line in cells) for i in range(len(head))]
    marks = ["", *("  *" if cost.setting == chosen else "" for cost in costs)]
    for line, mark in zip(cells, marks, strict=True):
        text = "  ".join(c.ljust(w) for c, w in zip(line, width, strict=True))
        yield (text + mark).rstrip()
    yield "* this command's (a fixed rule where learner.threads or target_thread is null)"


def _cells(cost: Cost) -> tuple[str, ...]:
    s = cost.setting
    target = "-" if s.target_thread is None else str(s.target_thread).lower()
    return str(s.threads), target, s.precision, f"{cost.median:.3g}", cost.span


def _advice(costs: Sequence[Cost], chosen: ComputeSetting) -> Iterator[str]:
    """Overrides of the fastest settings, and their gain."""
    own = next(c for c in costs if c.setting == chosen)
    exact = min((c for c in costs if c.setting.precision == "float32"), key=lambda c: c.median)
    best = min(costs, key=lambda c: c.median)
    gain = "this command's" if exact is own else _gain(exact, own, "this command's time")
    yield f"fastest in float32 ({gain}):"
    yield f"  {exact.setting.overrides()}"
    gain = "the same" if best is exact else _gain(best, exact, "that; bf16 changes the numbers")
    yield f"fastest of all ({gain}):"
    yield f"  {best.setting.overrides()}"


def _gain(cost: Cost, other: Cost, whose: str) -> str:
    noise = min(other.values) <= max(cost.values)
    return f"{'within the noise, ' if noise else ''}{cost.median / other.median:.2f} of {whose}"
