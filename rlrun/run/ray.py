"""The roles of a plan: what each is made of, in its process, and the pipeline over them."""

import json
import math
import os
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rlrun.buffer.mixed import Streams
from rlrun.buffer.replay import Replay
from rlrun.buffer.rollout import Rollouts
from rlrun.buffer.sizing import make_layout
from rlrun.config.ray import require_head
from rlrun.log import Log
from rlrun.pipeline.collector import ActionCounts, CollectMetrics
from rlrun.pipeline.learner import Learner, RolloutLearner
from rlrun.pipeline.loop import Pipeline
from rlrun.pipeline.overlapped import RowCheck
from rlrun.pipeline.parts import LoopProgress, Parts
from rlrun.pipeline.ray.async_source import AsyncSource
from rlrun.pipeline.ray.cluster import Cluster
from rlrun.pipeline.ray.collecting import CollectorParts
from rlrun.pipeline.ray.delivery import Chaos, Delivery
from rlrun.pipeline.ray.learning import LearnerParts
from rlrun.pipeline.ray.pipeline import Arrivals, RayEvaluations, RaySaving
from rlrun.pipeline.ray.predicting import PredictorParts
from rlrun.pipeline.ray.remote_buffer import RemoteBuffer, RemoteRollouts
from rlrun.pipeline.ray.remote_evaluator import RemoteEvaluator
from rlrun.pipeline.ray.remote_learner import RemoteLearner
from rlrun.pipeline.ray.replaying import ShardParts
from rlrun.pipeline.ray.roles import Makers, Roles
from rlrun.pipeline.ray.source import RaySource, RoundSource
from rlrun.pipeline.ray.weights import Publisher
from rlrun.pipeline.transport import AutoCollectorSide, AutoLearnerSide
from rlrun.run.build import (
    explore_of,
    load_rows,
    make_collector,
    make_evaluator,
    make_policy,
    make_replay,
    make_rollout,
    make_state_filter,
    make_store,
    run_files,
    with_loop,
)
from rlrun.run.manifest import CHECKPOINTS, ROWS
from rlrun.run.plan import Plan
from rlrun.schema import BufferConfig, IMPALAConfig, PriorityConfig, RayConfig
from rlrun.types import Counters, generator

FAULTS = "RLRUN_RAY_FAULTS"  # environment variable of tests: JSON of Chaos, and throttle in bytes/s
CHUNKS = 4  # chunks that the small replay of a collector holds beside a window


def ray_config(plan: Plan) -> RayConfig:
    """The keys of pipeline=ray."""
    assert isinstance(plan.config.pipeline, RayConfig)
    return plan.config.pipeline


def in_rounds(plan: Plan) -> bool:
    """Return whether all collectors collect with the same weights.

    Strict ones do, and those of PPO, A2C and PQN always.

    IMPALA corrects for the weights that acted, and replay does not depend on them.
    """
    policy = plan.config.policy
    return ray_config(plan).strict or (policy.on_policy and not isinstance(policy, IMPALAConfig))


def stream_plan(plan: Plan) -> Plan:
    """The plan of one collector and its part of the replay, on the CPU."""
    config, actors = plan.config, ray_config(plan).num_actors
    buffer = config.buffer
    if not config.policy.on_policy:
        buffer = replace(buffer, capacity=buffer.capacity // actors)
        if buffer.window_capacity is not None:
            buffer = replace(buffer, window_capacity=max(1, buffer.window_capacity // actors))
    config = replace(config, buffer=buffer, device="cpu")
    layout = plan.layout
    if plan.window is not None and not config.policy.on_policy:
        layout = make_layout(config, plan.row, plan.window, plan.columns)
    return replace(plan, config=config, layout=layout)


# -- parts of the roles, made in their processes --------------------------------------------------


def collector_parts(plan: Plan, number: int, link: float, counters: Counters) -> CollectorParts:
    """Collector ``number`` with its slice of the exploration, seeds and random numbers."""
    own, columns = stream_plan(plan), plan.columns
    seeds = replace(
        own.env_seeds, collect=own.env_seeds.collect + number * plan.config.collector.num_envs
    )
    collector = make_collector(replace(own, env_seeds=seeds), counters)
    explore = explore_of(plan, ray_config(plan).num_actors)
    part = slice(number * columns, (number + 1) * columns)
    collector.explore = lambda env_steps: explore(env_steps)[part]
    if number:
        collector.policy.generator = generator(plan.config.seed, f"explore/{number}")
        collector.actor = collector.policy.actor(collector.num_envs)
    td = _has_td_priorities(plan)
    states = None if own.window is None else make_state_filter(own)
    thin = (lambda rows: rows) if states is None else states.filter
    side = AutoCollectorSide(plan.config.transport, number, link=link, thin=thin)
    return CollectorParts(
        collector,
        side,
        Publisher(collector.policy, whole=td, half=plan.config.transport.copies == "bf16"),
        partial(first_windows, own) if td else None,
        states,
    )


def _has_td_priorities(plan: Plan) -> bool:
    buffer = plan.config.buffer
    return isinstance(buffer, PriorityConfig) and buffer.initial_priority == "td"


def first_windows(plan: Plan) -> Replay:
    """A replay of a collector's last rows, for the priorities of its new windows."""
    assert plan.window is not None
    c = plan.config
    per_chunk = 2 * -(-c.collector.n_sample // plan.columns) + 2
    rows = (2 * plan.window.rows + CHUNKS * per_chunk + c.env.frame_stack) * plan.columns
    known = {field.name: getattr(c.buffer, field.name) for field in fields(BufferConfig)}
    buffer = BufferConfig(**known | {
        "name": "uniform", "capacity": rows, "window_capacity": None, "compress": False,
        "relabel": None, "max_bytes": None,
    })  # fmt: skip
    config = replace(c, buffer=buffer)
    layout = make_layout(config, plan.row, plan.window, plan.columns)
    return make_replay(replace(plan, config=config, layout=layout))


def shard_parts(plan: Plan, number: int) -> ShardParts:
    """Shard ``number``: a replay for each of its collectors."""
    c, own = ray_config(plan), stream_plan(plan)
    mine = [i for i in range(c.num_actors) if i % c.num_shards == number]
    replays = []
    for collector in mine:
        seed = own.config.seed if collector == 0 else _seed(own.config.seed, collector)
        stream = replace(own, config=replace(own.config, seed=seed))
        replays.append(make_store(stream, note=lambda line: None))
        if own.config.buffer.load is not None:
            load_rows(stream, replays[-1])
    name = "streams" if number == 0 else f"streams/{number}"
    streams = Streams(replays, generator=generator(own.config.seed, name))
    sides = {i: AutoLearnerSide(own.config.transport, i, link=math.inf) for i in mine}
    stream_of = {collector: j for j, collector in enumerate(mine)}
    return ShardParts(streams, sides, stream_of, RowCheck(own.row, own.columns))


def _seed(seed: int, number: int) -> int:
    """A seed for the parts of collector ``number``."""
    return int(generator(seed, f"collector/{number}").integers(2**32))


def learner_parts(plan: Plan, link: float) -> LearnerParts:
    """The policy that learns, and its rollouts where it is on-policy."""
    c, counters = plan.config, Counters()
    policy = make_policy(plan)
    half = c.transport.copies == "bf16"
    publisher = Publisher(policy, whole=_has_td_priorities(plan), half=half)
    side = AutoLearnerSide(c.transport, 0, link=link)
    check = RowCheck(plan.row, plan.columns)
    if not c.policy.on_policy:
        make = partial(_learner, plan, policy, counters)
        return LearnerParts(policy, publisher, side, counters, make, None, {}, check)
    actors = range(ray_config(plan).num_actors)
    rollouts = Rollouts([make_rollout(plan, policy.actor(plan.columns)) for _ in actors])
    sides = {i: AutoLearnerSide(c.transport, i, link=math.inf) for i in actors}
    make_on_policy = partial(_rollout_learner, plan, policy, counters)
    return LearnerParts(policy, publisher, side, counters, make_on_policy, rollouts, sides, check)


def _learner(plan: Plan, policy: Any, counters: Counters, buffer: Any) -> Learner:
    return Learner(
        plan.config.learner, policy=policy, buffer=buffer, counters=counters, td_priority=False
    )


def _rollout_learner(plan: Plan, policy: Any, counters: Counters, buffer: Any) -> RolloutLearner:
    return RolloutLearner(plan.config.learner, policy=policy, buffer=buffer, counters=counters)


def evaluator_parts(plan: Plan) -> Any:
    """(evaluator, policy whose weights are replaced)."""
    own = stream_plan(plan)
    return make_evaluator(own, Path(), None), make_policy(own)  # type: ignore[arg-type]


def predictor_parts(plan: Plan) -> PredictorParts:
    """Policies that act for the collectors: in rounds one each, with its random numbers."""
    c = ray_config(plan)
    policies, rounds = [], in_rounds(plan)
    for number in range(c.num_actors if rounds else 1):
        policies.append(make_policy(plan))
        if number:
            policies[-1].generator = generator(plan.config.seed, f"explore/{number}")
    whole = _has_td_priorities(plan)
    publisher = Publisher(policies[0], whole=whole, half=plan.config.transport.copies == "bf16")
    side = AutoCollectorSide(plan.config.transport, 0, link=math.inf, thin=lambda rows: rows)
    return PredictorParts(policies, side, publisher, plan.columns, rounds)


# -- the pipeline ---------------------------------------------------------------------------------


def make_ray_pipeline(plan: Plan, run_dir: Path, log: Log) -> Pipeline:
    """All roles, placed, and the loop over them."""
    config, c, counters = plan.config, ray_config(plan), Counters()
    faults = json.loads(os.environ.get(FAULTS, "{}"))
    throttle = float(faults.pop("throttle", 0.0))
    roles_needed = {"collector": c.num_actors, "replay": c.num_shards, "learner": 1}
    roles_needed |= {"evaluator": 1, "predictor": int(c.inference == "central")}
    if config.policy.on_policy:
        roles_needed["replay"] = 0
    count, cores = sum(roles_needed.values()), os.cpu_count() or 1
    where = "starting Ray on this machine" if c.address is None else f"connecting to {c.address}"
    log.note(f"pipeline=ray: {where} and {count} roles, {_start_seconds(count, c.address, cores)}")
    if c.address is None and c.num_actors > cores:
        log.note(
            f"pipeline.num_actors = {c.num_actors}: the collectors share the {cores} core(s) of "
            "this machine; more collectors than cores seldom make a run faster"
        )
    cluster = _connect(c, roles_needed)
    rounds = in_rounds(plan)
    try:
        link = _link(config.transport.link_mbps, cluster, log)
        shards = range(roles_needed["replay"])
        makers = Makers(
            [partial(collector_parts, plan, i, link) for i in range(c.num_actors)],
            [partial(shard_parts, plan, i) for i in shards],
            partial(learner_parts, plan, link),
            partial(evaluator_parts, plan),
            partial(predictor_parts, plan),
        )
        roles = Roles(
            c, makers, run_dir, cluster=cluster, threads=plan.threads, seed=config.seed,
            prefetch=1 if rounds else c.prefetch, keep=config.transport.keep, throttle=throttle,
        )  # fmt: skip
    except BaseException:
        cluster.close()
        raise
    try:
        pipeline = _wire(plan, run_dir, log, roles, counters, Chaos(**faults), rounds)
        roles.ready = True
        return pipeline
    except BaseException:
        roles.close()
        raise


def _start_seconds(roles: int, address: str | None, cores: int) -> str:
    """Say how long the start takes: each process loads torch, one at a time on a core."""
    return "some seconds" if address else f"about {3 + 2 * math.ceil(roles / cores)} s"


def _wire(
    plan: Plan,
    run_dir: Path,
    log: Log,
    roles: Roles,
    counters: Counters,
    chaos: Chaos,
    rounds: bool,
) -> Pipeline:
    config, c = plan.config, ray_config(plan)
    for shard in roles.shards:
        shard.update(roles.ask(shard, "info"))
    explore = explore_of(plan, c.num_actors)
    metrics = CollectMetrics(counters, explore, ActionCounts(plan.row_spec.action))
    given = {"keep_env": rounds, "max_seconds": config.watchdog.max_seconds}
    delivery = Delivery(roles, chaos) if roles.shards else None
    source: RaySource
    policy = make_policy(replace(plan, config=replace(config, device="cpu")))
    rows = run_dir / CHECKPOINTS / ROWS
    buffer: RemoteBuffer | RemoteRollouts = RemoteRollouts()
    if delivery is not None:
        buffer = RemoteBuffer(roles, delivery, rounds=rounds, directory=rows)
    per_round = c.num_actors * config.collector.n_sample
    if rounds:
        source = RoundSource(roles, metrics, publish=lambda: learner.publish(), **given)
    else:
        source = AsyncSource(
            roles, metrics, delivery=delivery, total_steps=config.run.total_steps,
            **given,
        )  # fmt: skip
    source.traffic.delivery = delivery
    learner = RemoteLearner(
        config.learner, roles, source.traffic, policy=policy, buffer=buffer, counters=counters,
        rounds=rounds, max_lead=c.max_lead or 2 * per_round,
        publish_every=c.weights_every * c.num_actors, stop=lambda: roles.stop(),
    )  # fmt: skip
    evaluator = RemoteEvaluator(roles)
    parts = Parts(run_dir, log, LoopProgress(counters), source, policy, buffer, learner, evaluator)
    arrivals = Arrivals(parts)
    evaluations = RayEvaluations(
        config=config.run, parts=parts, evaluator=evaluator, learner=learner, arrivals=arrivals
    )
    saving = RaySaving(
        every=config.run.checkpoint_every, parts=parts, evaluations=evaluations,
        files=run_files(plan, parts), settings=plan.settings(),
        warned=not c.strict,  # that it cannot be resumed exactly was chosen
    )  # fmt: skip
    pipeline = with_loop(plan, parts, evaluations, saving)
    arrivals.learn = pipeline.learn
    return pipeline


def _connect(c: RayConfig, needed: dict[str, int]) -> Cluster:
    """Connect to Ray; all roles together reserve what the config says of each."""
    cpus = sum(getattr(c, name).num_cpus * count for name, count in needed.items())
    gpus = sum(getattr(c, name).num_gpus * count for name, count in needed.items())
    custom: dict[str, Any] = {}
    for name, count in needed.items():
        for resource, amount in getattr(c, name).resources.items():
            custom[resource] = custom.get(resource, 0.0) + float(amount) * count
    require_head(c.address)
    return Cluster(c.address, cpus=cpus, gpus=gpus, custom=custom)


def _link(mbps: float | None, cluster: Cluster, log: Log) -> float:
    """Bytes/s between the roles: configured, infinite on one machine, else measured."""
    if mbps is not None:
        return mbps * 125_000
    if cluster.local:
        return math.inf
    from rlrun.pipeline.ray.link import measure

    found = measure()
    if math.isfinite(found):
        log.note(f"transport.link_mbps: measured {found / 125_000:.0f} Mbit/s between two nodes")
    return found
