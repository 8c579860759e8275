"""Construction of the parts of a run from its plan."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlrun.buffer.cutter import Cutter
from rlrun.buffer.hindsight import Hindsight
from rlrun.buffer.layout import (
    REWARD,
    ArraySpec,
    Row,
    check_rollout,
    check_size,
    in_memory,
    on_disk,
)
from rlrun.buffer.mixed import Mixed, Streams
from rlrun.buffer.replay import Replay
from rlrun.buffer.rollout import Rollout, Rollouts
from rlrun.buffer.samplers import Proportional, Rank, Uniform
from rlrun.config.backend import Backend, kernel_name
from rlrun.config.checks import check_video
from rlrun.env import beside_others, goal_functions, make_env
from rlrun.env.framestack import make_frame_stack
from rlrun.errors import ConfigError
from rlrun.log import Log
from rlrun.pipeline.bonus import RND
from rlrun.pipeline.collector import ActionCounts, CollectMetrics, Collector, Explore, make_explore
from rlrun.pipeline.evaluate import Evaluator, FilmingEvaluator, SharedEvaluator
from rlrun.pipeline.learner import Inspector, Learner, RolloutLearner
from rlrun.pipeline.loop import Pipeline
from rlrun.pipeline.parts import (
    Faults,
    LoopEvaluations,
    LoopProgress,
    LoopReport,
    Parts,
    Profiler,
    Saving,
)
from rlrun.pipeline.source import OfflineSource, SerialSource, Source
from rlrun.pipeline.state import backends
from rlrun.policy.compute import Compute, keep_freed_memory
from rlrun.run.checkpoint import Saver
from rlrun.run.manifest import CHECKPOINTS
from rlrun.run.plan import Plan, plan_of_demos
from rlrun.schema import POLICY_CONFIGS, PrioritizedConfig, PriorityConfig, RankConfig, RNDConfig
from rlrun.terminal import paragraph
from rlrun.trust import trusted_class, users_class
from rlrun.types import Actor, Chunk, Counters, Policy, Spec, generator, tree_map

if TYPE_CHECKING:
    from rlrun.pipeline.transport import CollectorSide

# They collect and evaluate by compiled calls, or act by them, where environment and settings allow.
COMPILED = "ppo", "a2c", "impala", "pqn", "dqn"
ACTOR, EPISODES, ROLLOUT = (
    "rlrun.kernels.acting:CompiledActor", "rlrun.kernels.episodes:CompiledEpisodes",
    "rlrun.kernels.rollouts:CompiledRollout",
)  # fmt: skip


def policy_class(name: str) -> type[Any]:
    """Return ``rlrun.policy.foo:Foo`` for the keys ``FooConfig`` of the policy ``foo``.

    ``mypkg.mod:Class`` is a class of a trusted package.
    """
    if name not in POLICY_CONFIGS:
        return trusted_class("policy.name", name)
    module = "scripted" if name == "random" else name
    kind = POLICY_CONFIGS[name].__name__.removesuffix("Config")
    cls: type[Any] = resolve_name(f"rlrun.policy.{module}:{kind}")
    return cls


def make_policy(plan: Plan) -> Policy:
    """Return the policy named by ``config.policy.name``. Its module is imported only now."""
    config, cls = plan.config, policy_class(plan.config.policy.name)
    c, unroll = config.learner, None
    if plan.backend.compiled_memory:
        unroll = resolve_name("rlrun.kernels.gated:unroll")

    def make(spec: Spec, seed: int) -> Policy:
        compute = Compute(
            c.precision, target_thread=plan.target_thread, graph=c.cuda_graph, compile=c.compile,
            unroll=unroll, device=torch.device(config.device),
        )  # fmt: skip
        with users_class("policy.name", config.policy.name):
            policy: Policy = cls(
                config.policy, config.torso, config.memory, spec=spec, seed=seed,
                total_steps=plan.horizon, device=torch.device(config.device), compute=compute,
            )  # fmt: skip
        return with_kernel(policy, plan) if plan.backend.name == "numpy" else policy

    if config.agents.name == "separate":
        from rlrun.policy.separate import Separate

        return Separate(make, spec=plan.policy_spec, seed=config.seed)
    return make(plan.policy_spec, config.seed)


def with_kernel(policy: Any, plan: Plan) -> Policy:
    """Return ``policy`` with its numpy kernel, if there is one.

    A kernel computes the loss of exactly one class. A subclass, whose loss may differ, has none.
    """
    name = plan.config.policy.name
    kernel = kernel_name(plan.config)
    if kernel is not None and type(policy) is policy_class(name):
        from rlrun.kernels.parity import KernelCheck

        policy.kernel = resolve_name(kernel)(policy)
        policy.check = KernelCheck(policy)
    learner: Policy = policy
    return learner


def backend_used(policy: Policy, plan: Plan) -> Backend:
    """Return the backend that computed the updates of a run, and the reason for it."""
    if plan.backend.name == "torch" or "torch" not in backends(policy):
        return plan.backend
    return Backend("torch", "the numpy kernel does not compute this loss")


def make_bonus(plan: Plan) -> RND | None:
    """Return the bonus on rewards named by ``config.bonus``, or None."""
    config = plan.config
    if not isinstance(config.bonus, RNDConfig):
        return None
    return RND(
        config.bonus, config.torso, space=plan.row_spec.obs, stacked=config.env.frame_stack > 1,
        columns=plan.columns, seed=config.seed, total_steps=plan.horizon,
        device=torch.device(config.device),
    )  # fmt: skip


def prepare_process(plan: Plan) -> None:
    """Set torch's number of threads, and let malloc keep the memory that updates free."""
    torch.set_num_threads(plan.threads)
    keep_freed_memory()


Note = Callable[[str], None]
READ_ROWS = 256  # rows of a column that a dataset yields at a time


def _silent(line: str) -> None:
    """Discard a note."""


def make_cutter(plan: Plan) -> Cutter:
    """Return the cutter of ``collector.tiling``, which cuts rows into windows."""
    c, window = plan.config.collector, plan.window
    assert window is not None
    return Cutter(
        window, columns=plan.columns, stride=c.stride(window), residual=c.residual,
        plain=c.tiling == "plain",
    )  # fmt: skip


def make_replay(plan: Plan, *, note: Note = _silent, count: int = 1) -> Replay:
    """Return ring, windows and sampler of ``config.buffer``, for ``count`` collectors.

    ``note`` receives a line on the size before anything is allocated.

    Raises: ResourceError if it would be too large.
    """
    config, c, window = plan.config, plan.config.buffer, plan.window
    assert window is not None
    assert plan.layout is not None
    device = torch_device(c.device)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    layout = check_size(config, plan.layout, window, free=free)
    note(paragraph("replay: ", layout.describe()))
    make = Replay if count == 1 else partial(Streams, count=count)
    replay = make(
        layout, window=window, cutter=make_cutter(plan), sampler=_sampler(plan, layout.slots),
        stack=config.env.frame_stack, device=None if c.device == "cpu" else device,
        allocate=in_memory if c.mmap is None else on_disk(Path(c.mmap)),
    )  # fmt: skip
    if c.relabel is not None:
        goals = goal_functions(config.env)
        assert goals is not None, "rlrun.config has checked that"
        rng = generator(config.seed, "hindsight")
        replay.hindsight = Hindsight(
            replay.ring, goals, strategy=c.relabel, ratio=c.relabel_ratio, generator=rng
        )
    return replay


def make_rollout(plan: Plan, actor: Actor, *, note: Note = _silent) -> Rollout:
    """Return the storage for the rows of one collect call. ``actor`` defines the arrays it adds to
    rows.

    ``note`` receives a line on the size before anything is allocated.

    Raises: ResourceError if it would be too large.
    """
    added = {k: ArraySpec(x.shape[1:], x.dtype) for k, x in actor.extras.items()}
    state = tree_map(lambda x: ArraySpec(x.shape[1:], x.dtype), actor.initial_state())
    row = replace(plan.row, extras=plan.row.extras | added, state=state)
    note(check_rollout(plan.config, row))
    rows = plan.config.buffer.column_rows(plan.columns)
    example = zero_chunk(row, plan.columns)
    return Rollout(example, rows=rows, stack=plan.config.env.frame_stack, spaces=row.spaces)


def zero_chunk(row: Row, columns: int, rows: int = 0) -> Chunk:
    """Return a chunk of ``rows`` valid rows of zeros, in episodes that do not end."""
    flag = ArraySpec((), np.dtype(bool))

    def zeros(spec: ArraySpec, count: int = rows) -> np.ndarray:
        return np.zeros((count, columns, *spec.shape), spec.dtype)

    return Chunk(
        obs=tree_map(lambda spec: zeros(spec, rows + 1), row.obs), first=zeros(flag, rows + 1),
        action=zeros(row.action), reward=zeros(ArraySpec((), REWARD)),
        terminated=zeros(flag), truncated=zeros(flag), valid=~zeros(flag),
        extras={name: zeros(spec) for name, spec in row.extras.items()},
        states=tree_map(zeros, row.state),
    )  # fmt: skip


def torch_device(name: str) -> torch.device:
    """Return the device of ``buffer.device``."""
    return torch.device(name)


def _sampler(plan: Plan, slots: int) -> Uniform:
    """Return the sampler of ``config.buffer``."""
    c, total = plan.config.buffer, plan.horizon
    rng = generator(plan.config.seed, "buffer")
    if isinstance(c, PrioritizedConfig):
        return Proportional(c, slots, generator=rng, total_steps=total)
    if isinstance(c, RankConfig):
        return Rank(c, slots, generator=rng, total_steps=total)
    return Uniform(rng)


def load_rows(plan: Plan, buffer: Replay | Mixed) -> str:
    """Fill a new replay with the rows of ``buffer.load``. Return a line on the loaded rows.

    Raises: ConfigError if they do not fit the environment, StorageError if they are damaged.
    """
    from rlrun.dataset import open_source

    c = plan.config.buffer
    assert c.load is not None
    replay = buffer.own if isinstance(buffer, Mixed) else buffer
    source = open_source(c.load)
    source.require(plan.row_spec, plan.config.collector.keep_info)
    _add_all(replay, source, plan)
    replay.loaded.mark(replay.ring, replay.steps)
    held = replay.stored_steps()
    lost = f", of which the newest {held} fit (buffer.capacity)" if held < replay.steps else ""
    return f"loaded: {replay.steps} steps from {c.load}{lost}; {len(replay)} windows"


def _add_all(replay: Replay, source: Any, plan: Plan) -> None:
    """Add the rows of a dataset."""
    like = zero_chunk(plan.row, plan.columns).segment()
    for chunk in source.chunks(plan.columns, READ_ROWS, like=like):
        replay.add(chunk)


def make_store(plan: Plan, *, note: Note = _silent) -> Replay | Mixed:
    """Return the learner's replay, combined with one for the demonstrations of ``buffer.demos``.

    Raises: ConfigError if they do not fit the environment, ResourceError, StorageError if they are
    damaged.
    """
    replay, c = make_replay(plan, note=note), plan.config.buffer
    if c.demos is None:
        return replay
    from rlrun.dataset import open_source

    assert plan.window is not None
    source = open_source(c.demos, "buffer.demos")
    source.require(plan.row_spec, plan.config.collector.keep_info)
    demos_plan = plan_of_demos(plan, [trajectory.steps for trajectory in source.trajectories()])
    demos = make_replay(demos_plan)
    _add_all(demos, source, demos_plan)
    if not len(demos):
        raise ConfigError(
            f"buffer.demos = {c.demos}: its {demos.steps} steps make no window; a window is "
            f"{plan.window.rows} rows or an episode's rest; choose another dataset"
        )
    note(f"demonstrations: {demos.steps} steps from {c.demos}; {len(demos)} windows")
    rng = generator(plan.config.seed, "demos")
    return Mixed(replay, demos, ratio=c.demo_ratio, generator=rng)


def collector_side_of(plan: Plan, number: int = 0) -> "CollectorSide":
    """Return the side of collector ``number``, which zeros states from which no window starts."""
    from rlrun.pipeline.transport import StateFilter, make_collector_side  # imports the codec

    thin = {} if plan.window is None else {"thin": StateFilter(make_cutter(plan)).filter}
    return make_collector_side(plan.config.transport, number, **thin)


def make_collector(
    plan: Plan, counters: Counters, random: np.random.Generator | None = None
) -> Collector:
    """Return the collector with its environments and policy. ``random``: of its exploration."""
    config, c = plan.config, plan.config.collector
    lent = (config.env.success,) if config.env.instances and config.env.success else ()
    kept = tuple(dict.fromkeys((*c.keep_info, *lent)))  # ``lent``: for the evaluator
    # Of any backend, so that a resumed or forked run may have another one.
    compiled = config.policy.name in COMPILED and config.memory.name == "none"
    compiled = compiled and not config.env.instances
    env = make_env(
        config.env, num_envs=c.num_envs, keep_info=kept, agents=config.agents, resumable=True,
        compiled=compiled,
    )  # fmt: skip
    by_window, policy = plan.window is not None and c.unit == "window", make_policy(plan)
    policy.generator = random or policy.generator
    collector = Collector(
        c, env=env, policy=policy, explore=explore_of(plan), counters=counters,
        seed=plan.env_seeds.collect, cutter=make_cutter(plan) if by_window else None,
        stack=make_frame_stack(config.env.frame_stack, env.obs_space, plan.columns),
    )  # fmt: skip
    has_kernel = getattr(collector.policy, "kernel", None) is not None
    has_kernel = has_kernel and config.policy.name in COMPILED
    if compiled and has_kernel:
        collector.compiled = resolve_name(ROLLOUT).of(collector)
    if has_kernel and collector.compiled is None:
        collector.actor = resolve_name(ACTOR).of(collector) or collector.actor
    return collector


def make_evaluator(
    plan: Plan, run_dir: Path, log: Log, collector: Collector | None = None
) -> Evaluator:
    """Return the evaluator of a training run. ``collector``: the one whose environments exist."""
    c = plan.config
    has_kernel = plan.backend.name == "numpy" and c.policy.name in COMPILED
    compiled = resolve_name(EPISODES).of if has_kernel else None
    if c.env.instances is not None and collector is not None:
        return SharedEvaluator(c, collector, seed=plan.env_seeds.eval)
    try:
        if c.run.video_every is not None:
            check_video(c)  # also for a resumed run, before its first evaluation
            seed = plan.env_seeds.eval
            return FilmingEvaluator(c, seed=seed, log=log, run_dir=run_dir, compiled=compiled)
        return Evaluator(
            c.env, episodes=c.run.eval_episodes, seed=plan.env_seeds.eval,
            max_steps=c.eval.max_episode_steps, agents=c.agents, compiled=compiled,
        )  # fmt: skip
    except ConfigError as e:
        if collector is None:
            raise
        raise beside_others(e, f"made for evaluation, beside {c.collector.num_envs}") from e


def make_pipeline(plan: Plan, run_dir: Path, log: Log) -> Pipeline:
    """Return all components of a run, connected. Those of pipeline=ray: ``rlrun.run.ray``."""
    config, counters = plan.config, Counters()
    collector = make_collector(plan, counters) if config.pipeline.name == "serial" else None
    if collector is not None and config.transport.name != "coded":
        policy = collector.policy
    else:
        policy = make_policy(plan)
    if collector is not None:  # also for a second policy in this process
        policy.generator = collector.policy.generator
    if config.learner.cuda_graph and config.device == "cpu":
        log.note("learner.cuda_graph: not available with device=cpu; updates run without it")
    if config.learner.compile and plan.backend.name == "numpy" and config.policy.name == "dqn":
        log.note("learner.compile: unused, because numpy computes these updates")
    bonus = make_bonus(plan)
    buffer: Replay | Mixed | Rollout | None = None
    if config.policy.on_policy:
        buffer = make_rollout(plan, policy.actor(plan.columns), note=log.note)
    elif plan.window is not None:
        buffer = make_store(plan, note=log.note)
    learner = make_learner(plan, policy, buffer, counters, log, bonus)
    evaluator = make_evaluator(plan, run_dir, log, collector)
    source = _source(plan, collector, policy, learner, counters)
    parts = Parts(
        run_dir, log, LoopProgress(counters), source, policy, buffer, learner, evaluator, bonus
    )
    ready = evaluator.ready if isinstance(evaluator, SharedEvaluator) else lambda: True
    evaluations = LoopEvaluations(config.run, parts, ready)
    return with_loop(plan, parts, evaluations)


def with_loop(
    plan: Plan, parts: Parts, evaluations: LoopEvaluations, *, warned: bool = False
) -> Pipeline:
    """Return the loop over ``parts`` with its report, evaluations, saving and faults.

    ``warned``: as for ``Saving``.
    """
    run, logger = plan.config.run, plan.config.logger
    saver = Saver(parts.run_dir / CHECKPOINTS)
    versions = plan.config.checkpoint.history if parts.learner is not None else 0
    saving = Saving(run, parts, evaluations, saver, versions, plan.settings(), warned)
    recorded = logger.profile
    profiler = Profiler(parts.run_dir / "profile", recorded) if recorded is not None else None
    shown = {"collect/return_mean": "return"}
    if plan.config.explore.name != "none":
        shown["collect/epsilon_mean"] = "epsilon"
    report = LoopReport(logger.every, parts, saving, profiler, shown)
    return Pipeline(run, parts, report, evaluations, saving, Faults(run, parts, saving))


def explore_of(plan: Plan, collectors: int = 1) -> Explore:
    """Return the exploration of all columns of ``collectors`` collectors."""
    explore, columns = plan.config.explore, plan.columns * collectors
    return make_explore(explore, num_envs=columns, total_steps=plan.horizon)


def make_learner(
    plan: Plan,
    policy: Policy,
    buffer: Replay | Mixed | Rollout | Rollouts | None,
    counters: Counters,
    log: Log,
    bonus: RND | None = None,
) -> Learner | RolloutLearner | None:
    """Return the learner for the kind of buffer, or None without a buffer."""
    c = plan.config
    if buffer is None:
        return None
    shared: Any = {"policy": policy, "counters": counters, "bonus": bonus}
    if isinstance(buffer, Rollout | Rollouts):
        return RolloutLearner(c.learner, buffer=buffer, **shared)
    td = isinstance(c.buffer, PriorityConfig) and c.buffer.initial_priority == "td"
    inspector = _inspector(plan, policy, buffer, bonus, log)
    return Learner(c.learner, buffer=buffer, td_priority=td, inspector=inspector, **shared)


def _inspector(
    plan: Plan, policy: Policy, buffer: Replay | Mixed, bonus: RND | None, log: Log
) -> Inspector | None:
    """Return the inspector of sampled windows, or None if there is nothing to show."""
    c, every = plan.config, plan.config.logger.figures_every
    if not (c.logger.tensorboard and hasattr(policy, "inspect")):
        return None
    if every is None or plan.window is None:
        return None
    return Inspector(
        every, c.learner.batch_size, policy=policy, window=plan.window, buffer=buffer, bonus=bonus,
        log=log,
    )  # fmt: skip


def _source(
    plan: Plan,
    collector: Collector | None,
    policy: Policy,
    learner: Learner | RolloutLearner | None,
    counters: Counters,
) -> Source:
    """Return the source of chunks that ``pipeline`` names."""
    config, make_side = plan.config, partial(collector_side_of, plan)
    if collector is not None and config.transport.name != "coded":
        return SerialSource(collector, policy, None)
    from rlrun.pipeline.overlapped import CollectorProcess, OverlappedSource, RowCheck
    from rlrun.pipeline.transport import InProcess, make_learner_side

    if collector is not None:
        transport = InProcess(make_learner_side(config.transport), make_side())
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
