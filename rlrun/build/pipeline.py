"""A plan's collector, learner and pipeline, wired."""

from functools import partial
from pathlib import Path

from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.buffer.rollout import Rollout
from rlrun.build.plan import Plan
from rlrun.build.policy import make_bonus, make_policy
from rlrun.build.replay import make_cutter, make_rollout, make_store
from rlrun.build.transport import collector_side_of
from rlrun.env import beside_others, make_env
from rlrun.env.framestack import make_frame_stack
from rlrun.errors import ConfigError
from rlrun.log import Log
from rlrun.pipeline.bonus import RND
from rlrun.pipeline.collect_metrics import ActionCounts, CollectMetrics, Explore, make_explore
from rlrun.pipeline.collector import Collector
from rlrun.pipeline.evaluate import Evaluator, FilmingEvaluator, SharedEvaluator
from rlrun.pipeline.evaluations import LoopEvaluations
from rlrun.pipeline.learner import InspectedPolicy, Inspector, Learner, RolloutLearner
from rlrun.pipeline.loop import Pipeline
from rlrun.pipeline.overlapped import CollectorProcess, OverlappedSource, RowCheck
from rlrun.pipeline.parts import LoopProgress, Parts
from rlrun.pipeline.report import LoopReport, Profiler
from rlrun.pipeline.saving import Faults, RunFiles, Saving
from rlrun.pipeline.source import OfflineSource, SerialSource, Source
from rlrun.rundir.manifest import CHECKPOINTS
from rlrun.schema import Config, PriorityConfig
from rlrun.transport import InProcess, make_learner_side
from rlrun.types import Counters, Policy


def make_collector(plan: Plan, counters: Counters) -> Collector:
    """Environments, policy, and the collector that joins them."""
    config, c = plan.config, plan.config.collector
    env = make_env(
        config.env,
        num_envs=c.num_envs,
        keep_info=_kept_keys(config),
        agents=config.agents,
        resumable=True,
    )
    by_window = plan.window is not None and c.unit == "window"
    return Collector(
        c,
        env=env,
        policy=make_policy(plan),
        explore=explore_of(plan),
        counters=counters,
        seed=plan.env_seeds.collect,
        cutter=make_cutter(plan) if by_window else None,
        stack=make_frame_stack(config.env.frame_stack, env.obs_space, plan.columns),
    )


def _kept_keys(config: Config) -> tuple[str, ...]:
    """Return the keys of infos that the collector's environments read."""
    shared = (config.env.success,) if config.env.instances and config.env.success else ()
    return tuple(dict.fromkeys((*config.collector.keep_info, *shared)))


def make_evaluator(
    plan: Plan, run_dir: Path, log: Log, collector: Collector | None = None
) -> Evaluator:
    """Evaluation episodes of a training run; ``collector``: whose environments exist already."""
    c = plan.config
    if c.env.instances is not None and collector is not None:
        return SharedEvaluator(c, collector, seed=plan.env_seeds.eval)
    try:
        return _make_evaluator(plan, run_dir, log)
    except ConfigError as e:
        if collector is None:
            raise
        raise beside_others(e, f"made for evaluation, beside {c.collector.num_envs}") from e


def _make_evaluator(plan: Plan, run_dir: Path, log: Log) -> Evaluator:
    c = plan.config
    if c.run.video_every is not None:
        return FilmingEvaluator(c, seed=plan.env_seeds.eval, log=log, run_dir=run_dir)
    return Evaluator(
        c.env,
        episodes=c.run.eval_episodes,
        seed=plan.env_seeds.eval,
        max_steps=c.eval.max_episode_steps,
        agents=c.agents,
    )


def make_pipeline(plan: Plan, run_dir: Path, log: Log) -> Pipeline:
    """All components of a run, wired."""
    config, counters = plan.config, Counters()
    if config.pipeline.name == "ray":
        from rlrun.build.ray import make_ray_pipeline

        return make_ray_pipeline(plan, run_dir, log)
    collector = make_collector(plan, counters) if config.pipeline.name == "serial" else None
    policy = _learner_policy(plan, collector)
    if config.learner.cuda_graph and config.device == "cpu":
        log.note("learner.cuda_graph: device=cpu has none; updates go on one operation at a time")
    if config.learner.compile and plan.backend.name == "numpy" and config.policy.name == "dqn":
        log.note("learner.compile: plain layers learn in numpy here, which nothing compiles")
    bonus = make_bonus(plan)
    buffer, learner = _buffer_and_learner(plan, policy, counters, bonus, log)
    evaluator = make_evaluator(plan, run_dir, log, collector)
    source = _source(plan, collector, policy, learner, counters)
    parts = Parts(
        run_dir, log, LoopProgress(counters), source, policy, buffer, learner, evaluator, bonus
    )
    ready = evaluator.ready if isinstance(evaluator, SharedEvaluator) else lambda: True
    evaluations = LoopEvaluations(config.run, parts, ready)
    saving = Saving(
        config.run.checkpoint_every, parts, evaluations, run_files(plan, parts), plan.settings()
    )
    return with_loop(plan, parts, evaluations, saving)


def run_files(plan: Plan, parts: Parts) -> RunFiles:
    """The checkpoints and weights of a run."""
    versions = plan.config.checkpoint.history if parts.learner is not None else 0
    keep = plan.config.run.keep_checkpoints
    return RunFiles(parts.run_dir / CHECKPOINTS, parts.log, keep=keep, versions=versions)


def with_loop(plan: Plan, parts: Parts, evaluations: LoopEvaluations, saving: Saving) -> Pipeline:
    """The loop over ``parts``, with what stands beside it."""
    run, logger = plan.config.run, plan.config.logger
    recorded = logger.profile if plan.config.pipeline.name != "ray" else None
    profiler = Profiler(parts.run_dir / "profile", recorded) if recorded is not None else None
    report = LoopReport(logger.every, parts, saving, profiler)
    return Pipeline(run, parts, report, evaluations, saving, Faults(run, parts, saving))


def explore_of(plan: Plan, collectors: int = 1) -> Explore:
    """The exploration of all columns of so many collectors."""
    explore, columns = plan.config.explore, plan.columns * collectors
    return make_explore(explore, num_envs=columns, total_steps=plan.horizon)


def _learner_policy(plan: Plan, collector: Collector | None) -> Policy:
    """The policy that learns: the collector's own, unless weights are sent to that.

    A second policy in this process has the collector's exploration generator.
    """
    if collector is None:
        return make_policy(plan)
    if plan.config.transport.name != "coded":
        return collector.policy
    policy = make_policy(plan)
    policy.generator = collector.policy.generator
    return policy


def _buffer_and_learner(
    plan: Plan, policy: Policy, counters: Counters, bonus: RND | None, log: Log
) -> tuple[Replay | Mixed | Rollout | None, Learner | RolloutLearner | None]:
    c = plan.config
    if c.policy.on_policy:
        rollout = make_rollout(plan, policy.actor(plan.columns), note=log.note)
        return rollout, RolloutLearner(
            c.learner, policy=policy, buffer=rollout, counters=counters, bonus=bonus
        )
    if plan.window is None:
        return None, None
    replay = make_store(plan, note=log.note)
    td = isinstance(c.buffer, PriorityConfig) and c.buffer.initial_priority == "td"
    return replay, Learner(
        c.learner, policy=policy, buffer=replay, counters=counters, td_priority=td, bonus=bonus,
        inspector=_inspector(plan, policy, replay, bonus, log),
    )  # fmt: skip


def _inspector(
    plan: Plan, policy: Policy, buffer: Replay | Mixed, bonus: RND | None, log: Log
) -> Inspector | None:
    """The inspector of sampled windows; None where there is nothing to show."""
    c = plan.config
    if not c.logger.tensorboard or c.logger.figures_every is None or plan.window is None:
        return None
    if not isinstance(policy, InspectedPolicy):
        return None
    return Inspector(
        c.logger.figures_every, c.learner.batch_size, policy=policy, window=plan.window,
        buffer=buffer, bonus=bonus, log=log,
    )  # fmt: skip


def _source(
    plan: Plan,
    collector: Collector | None,
    policy: Policy,
    learner: Learner | RolloutLearner | None,
    counters: Counters,
) -> Source:
    """The source of chunks that ``pipeline`` names."""
    config, make_side = plan.config, partial(collector_side_of, plan)
    if collector is not None:
        coded = config.transport.name == "coded"
        transport = InProcess(make_learner_side(config.transport), make_side()) if coded else None
        return SerialSource(collector, policy, transport)
    if config.pipeline.name == "offline":
        assert isinstance(learner, Learner), "checked in rlrun.config"
        return OfflineSource(config.learner, learner.buffer, counters)
    check = RowCheck(plan.row, plan.columns)
    process = CollectorProcess(
        partial(make_collector, plan), policy, make_learner_side(config.transport), make_side,
        check=check, max_seconds=config.watchdog.max_seconds,
    )  # fmt: skip
    metrics = CollectMetrics(counters, explore_of(plan), ActionCounts(plan.row_spec.action))
    total_steps = config.run.total_steps
    return OverlappedSource(process, policy, metrics, check=check, total_steps=total_steps)
