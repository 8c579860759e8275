"""From a validated config to running objects, and the run's life around the pipeline."""

import logging
import re
import sys
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from rlrun import checkpoint
from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.buffer.rollout import Rollout
from rlrun.build_link import make_collector_end
from rlrun.build_policy import make_bonus, make_policy, thread_count
from rlrun.build_replay import (
    load_rows,
    make_cutter,
    make_rollout,
    make_store,
)
from rlrun.collector import Collector
from rlrun.config import check_precision
from rlrun.env import Env, make_env
from rlrun.errors import Interrupted, RlrunError
from rlrun.evaluate import Evaluator, eval_metrics
from rlrun.framestack import make_stack, stack_space
from rlrun.learner import Learner, RolloutLearner
from rlrun.log import Log, final_line
from rlrun.nets.bare import BareUpdate
from rlrun.pipeline.offline import Offline
from rlrun.pipeline.overlapped import Overlapped
from rlrun.pipeline.profile import Profiler, shares
from rlrun.pipeline.remote import Remote
from rlrun.pipeline.serial import CHECKPOINTS, Serial
from rlrun.rundir import RunRecord, digest, lock
from rlrun.schedule import make_explore
from rlrun.schema import Config, PriorityConfig
from rlrun.transport import Local, learner_end
from rlrun.types import Counters, Policy, Spec, generator

SEEDS = {"collect": 0, "eval": 1, "final": 2}  # disjoint ranges of environment seeds


def env_seed(seed: int, purpose: str) -> int:
    """An environment seed in the purpose's own range of 2^29 (environments add 0..E-1 to it)."""
    return SEEDS[purpose] * 2**29 + int(generator(seed, f"env/{purpose}").integers(2**28))


def make_collector(config: Config, counters: Counters) -> Collector:
    """Environments, policy, and the collector that joins them."""
    c = config.collector
    env = make_env(config.env, num_envs=c.num_envs, keep_info=c.keep_info, agents=config.agents)
    policy = make_policy(config, spec_of(config, env))
    window, total, columns = policy.window, config.run.total_steps, env.num_envs
    return Collector(
        c,
        env=env,
        policy=policy,
        explore=make_explore(config.explore, num_envs=columns, total_steps=total),
        counters=counters,
        seed=env_seed(config.seed, "collect"),
        cutter=make_cutter(config, window, columns) if window and c.unit == "window" else None,
        stack=make_stack(config.env.frame_stack, env.obs_space, columns),
    )


def spec_of(config: Config, env: Env) -> Spec:
    """The spaces a policy sees: those of the environment, frames stacked."""
    return Spec(stack_space(env.obs_space, config.env.frame_stack), env.action_space)


def make_pipeline(config: Config, run_dir: Path, log: Log) -> Serial:
    """All components of a run, wired."""
    counters = Counters()
    collector = make_collector(config, counters)
    policy = make_learner_policy(config, collector)
    if config.learner.cuda_graph and config.device == "cpu":
        log.note("learner.cuda_graph: device=cpu has none; updates go on one operation at a time")
    if config.learner.compile and isinstance(getattr(policy, "step", None), BareUpdate):
        log.note("learner.compile: plain layers learn in numpy here, which nothing compiles")
    buffer: Replay | Mixed | Rollout | None = None
    learner: Learner | RolloutLearner | None = None
    bonus = make_bonus(config, collector.env.obs_space, columns=collector.num_envs)
    if config.policy.on_policy:
        buffer = make_rollout(config, collector.example(), note=log.note)
        learner = RolloutLearner(
            config.learner, policy=policy, buffer=buffer, counters=counters, bonus=bonus
        )
    elif policy.window is not None:
        buffer = make_store(config, collector, policy.window, note=log.note)
        td = isinstance(config.buffer, PriorityConfig) and config.buffer.initial_priority == "td"
        learner = Learner(
            config.learner,
            policy=policy,
            buffer=buffer,
            counters=counters,
            td_priority=td,
            bonus=bonus,
        )
    evaluator = Evaluator(
        config.env,
        episodes=config.run.eval_episodes,
        seed=env_seed(config.seed, "eval"),
        agents=config.agents,
    )
    recorded = config.logger.profile
    profiler = Profiler(run_dir / "profile", recorded) if recorded is not None else None
    parts = (
        config.run, config.logger, run_dir, collector, policy, buffer, learner, evaluator, log,
        counters, profiler, config.checkpoint.history,
    )  # fmt: skip
    far = partial(make_collector_end, config, policy.window)
    if config.pipeline.name == "serial":
        coded = config.transport.name != "raw"
        link = Local(learner_end(config.transport), far()) if coded else None
        return Serial(*parts, link, bonus)
    collector.env.close()  # it showed shapes; rows come from a dataset, or from another process
    if config.pipeline.name == "offline":
        return Offline(*parts)
    remote = Remote(partial(make_collector, config), policy, learner_end(config.transport), far)
    return Overlapped(*parts, bonus=bonus, remote=remote)


def make_learner_policy(config: Config, collector: Collector) -> Policy:
    """Whose weights are learned: the collector's own policy, unless weights travel to that.

    Both draw from one generator, as if they were one.
    """
    if config.pipeline.name != "serial" or config.transport.name == "raw":
        return collector.policy
    policy = make_policy(config, spec_of(config, collector.env))
    policy.generator = collector.policy.generator
    return policy


def set_threads(config: Config) -> int:
    """Torch's thread count: learner.threads, else a fixed rule over shape, cores and device.

    One thread until an update's matrices are large enough to share: measured on 2 cores, a second
    thread gains nothing at batch 32 x hidden 32 and a third at 64 x 64 and above. The overlapped
    pipeline leaves a core to its collector.
    """
    threads = thread_count(config)
    torch.set_num_threads(threads)
    return threads


def run(config: Config, run_dir: Path, *, raw_yaml: str, overrides: list[str]) -> int:
    """One run in ``run_dir`` (which exists); its exit code. Errors are raised, and recorded."""
    return _run(config, run_dir, raw_yaml=raw_yaml, resumed=False)


def resume(run_dir: Path, config: Config, *, raw_yaml: str, overrides: list[str]) -> int:
    """Continue a run from its newest valid checkpoint; its exit code.

    ``raw_yaml`` (config.yaml with ``overrides`` in it) becomes the run's config.
    """
    handler = logging.FileHandler(run_dir / "rlrun.log")
    logging.getLogger().addHandler(handler)
    try:
        return _run(config, run_dir, raw_yaml=raw_yaml, resumed=True)
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def _run(config: Config, run_dir: Path, *, raw_yaml: str, resumed: bool) -> int:
    threads = set_threads(config)
    check_precision(config)  # the run may have been begun, or its job sent from, elsewhere
    with lock(run_dir):
        state = None
        if resumed:
            state, _ = checkpoint.load_newest(run_dir / CHECKPOINTS)
            checkpoint.replace(run_dir / "config.yaml", raw_yaml.encode())
        record = RunRecord(config.seed, config.device, threads, parameters=0)
        if resumed:
            earlier = RunRecord.read(run_dir)
            record.started, record.command = earlier.started, earlier.command
            record.resumes = [*earlier.resumes, list(sys.argv)]
        try:
            return _life(config, run_dir, record, raw_yaml, state)
        except Interrupted:
            raise
        except RlrunError as e:
            _close_record(record, run_dir, "failed", e.exit_code)
            raise
        except Exception:
            _close_record(record, run_dir, "failed", RlrunError.exit_code)
            raise


def _life(
    config: Config, run_dir: Path, record: RunRecord, raw_yaml: str, state: dict[str, Any] | None
) -> int:
    """Build, run, account for."""
    title = f"{config.policy.name} on {config.env.id}, seed {config.seed}"
    since = state["counters"]["env_steps"] if state else None
    total = config.run.total_steps
    with (
        Log(config.logger, run_dir, total_steps=total, title=title, resume_from=since) as log,
        closing(make_pipeline(config, run_dir, log)) as pipeline,
    ):
        if state is not None:
            pipeline.load_state_dict(state)
        elif isinstance(pipeline.buffer, Replay | Mixed) and config.buffer.load is not None:
            log.note(load_rows(config, pipeline.buffer, pipeline.collector))
        record.parameters = sum(w.numel() for w in pipeline.policy.weights().values())
        record.write(run_dir)
        flat = _flat(asdict(config)) | _secrets(raw_yaml)
        log.hparams(raw_yaml, flat, {})
        try:
            result = pipeline.run()
        finally:
            record.env_steps, record.updates = (
                pipeline.counters.env_steps,
                pipeline.counters.updates,
            )
            record.wall_seconds = log.wall_seconds
        record.best_eval = result.best
        record.eval = result.final
        record.digest = digest(run_dir / "metrics.jsonl", pipeline.policy.weights())
        if result.stopped is not None:
            _close_record(record, run_dir, "interrupted", result.stopped)
            raise _interrupted(result.stopped, pipeline.counters.env_steps, run_dir)
        if pipeline.profiler is not None:
            _tell(pipeline.profiler, pipeline.spent, log)
        final = eval_metrics(result.final) if result.final else {}
        log.hparams(raw_yaml, flat, final)
        _close_record(record, run_dir, "done", 0)
        log.done(
            final_line(
                record.eval,
                env_steps=record.env_steps,
                wall_seconds=record.wall_seconds,
                run_dir=run_dir,
                clock=pipeline.clock,
            )
        )
    return 0


def _tell(profiler: Profiler, spent: dict[str, float], log: Log) -> None:
    """Where the time went, on the terminal and in TensorBoard."""
    lines = shares(spent, log.wall_seconds - profiler.seconds)
    if profiler.table is not None:
        lines += ["", profiler.table, f"trace: {profiler.directory}/profile.pt.trace.json"]
    log.text("profile", "```text\n" + "\n".join(lines) + "\n```")
    log.note("\n".join(lines))


def _close_record(record: RunRecord, run_dir: Path, status: Any, exit_code: int) -> None:
    record.status, record.exit_code = status, exit_code
    record.write(run_dir)


def _interrupted(code: int, env_steps: int, run_dir: Path) -> RlrunError:
    error = Interrupted(
        f"interrupted at env step {env_steps}; saved; go on: rlrun resume {run_dir}"
    )
    error.exit_code = code
    return error


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"a.b": scalar} of a nested config."""
    if not isinstance(tree, dict):
        return {prefix: tree if isinstance(tree, (bool, int, float, str)) else str(tree)}
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= _flat(value, f"{prefix}.{key}" if prefix else key)
    return out


def _secrets(raw_yaml: str) -> dict[str, str]:
    """Keys whose yaml asks a resolver (${oc.env:...}): what a board may show is the question."""
    raw = _flat(yaml.safe_load(raw_yaml) or {})
    return {k: v for k, v in raw.items() if isinstance(v, str) and re.search(r"\$\{\w+\.\w+:", v)}
