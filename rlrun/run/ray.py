"""The parts of a run on Ray: the contents of each role, and the pipeline over the roles."""

import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlrun.buffer.layout import make_layout
from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.buffer.rollout import Rollout, Rollouts
from rlrun.config.ray import require_head
from rlrun.log import Log
from rlrun.pipeline.collector import ActionCounts, CollectMetrics, Collector
from rlrun.pipeline.loop import Pipeline
from rlrun.pipeline.overlapped import RowCheck
from rlrun.pipeline.parts import LoopProgress, Parts
from rlrun.pipeline.ray import driver
from rlrun.pipeline.ray.cluster import Cluster, link_speed
from rlrun.pipeline.ray.roles import (
    AsyncWorker,
    CollectorRole,
    CollectorThreads,
    EvaluatorRole,
    Member,
    PredictorRole,
    Role,
    Roles,
)
from rlrun.pipeline.transport import decided, make_collector_side, make_learner_side
from rlrun.run import build
from rlrun.run.plan import Plan
from rlrun.schema import IMPALAConfig, RayConfig
from rlrun.types import Counters, Policy, generator


def ray_config(plan: Plan) -> RayConfig:
    """Return the keys of pipeline=ray."""
    assert isinstance(plan.config.pipeline, RayConfig)
    return plan.config.pipeline


def in_rounds(plan: Plan) -> bool:
    """Return whether all collectors collect with the same weights.

    True if strict, and always for PPO, A2C and PQN. IMPALA corrects for the weights that acted, and
    replay does not depend on them.
    """
    policy = plan.config.policy
    return ray_config(plan).strict or (policy.on_policy and not isinstance(policy, IMPALAConfig))


def collector_of(plan: Plan, number: int, counters: Counters) -> Collector:
    """Return collector ``number`` with its part of the exploration, seeds and random numbers."""
    columns, num_envs = plan.columns, plan.config.collector.num_envs
    seeds = replace(plan.env_seeds, collect=plan.env_seeds.collect + number * num_envs)
    random = generator(plan.config.seed, f"explore/{number}") if number else None
    collector = build.make_collector(replace(_on_cpu(plan), env_seeds=seeds), counters, random)
    explore = build.explore_of(plan, ray_config(plan).num_actors)
    part = slice(number * columns, (number + 1) * columns)
    collector.explore = lambda env_steps: explore(env_steps)[part]
    return collector


def collector_role(plan: Plan, number: int) -> CollectorRole:
    make_side = partial(build.collector_side_of, plan, number)
    return CollectorRole(partial(collector_of, plan, number), make_side, number)


def collector_threads(plan: Plan, numbers: range) -> CollectorThreads:
    return CollectorThreads([collector_role(plan, number) for number in numbers])


def evaluator_role(plan: Plan) -> EvaluatorRole:
    cpu_plan = _on_cpu(plan)
    return EvaluatorRole(build.make_evaluator(cpu_plan, Path(), None), build.make_policy(cpu_plan))  # type: ignore[arg-type]


def predictor_role(plan: Plan) -> PredictorRole:
    """Return the role of the predictor. In rounds it has one policy per collector."""
    policies, rounds = [], in_rounds(plan)
    for number in range(ray_config(plan).num_actors if rounds else 1):
        policies.append(build.make_policy(plan))
        if number:
            policies[-1].generator = generator(plan.config.seed, f"explore/{number}")
    side, seed = make_collector_side(plan.config.transport), plan.config.seed
    return PredictorRole(policies, side, columns=plan.columns, rounds=rounds, seed=seed)


def _on_cpu(plan: Plan) -> Plan:
    return replace(plan, config=replace(plan.config, device="cpu"))


def make_ray_pipeline(plan: Plan, run_dir: Path, log: Log) -> Pipeline:
    """Return the loop over roles on a cluster. Replay and learner stay in this process."""
    c = ray_config(plan)
    count, cores = _processes(c) + 1 + (c.inference == "central"), os.cpu_count() or 1
    where = "starting Ray on this machine" if c.address is None else f"connecting to {c.address}"
    # Each process loads torch, one per core at a time.
    seconds = "some seconds" if c.address else f"{3 + 2 * math.ceil(count / cores)} s or more"
    log.note(f"pipeline=ray: {where} and {count} roles, {seconds}")
    roles = Roles(_connect(c), run_dir)
    try:
        transport = decided(plan.config.transport, _link(plan, roles.cluster, log))
        plan = replace(plan, config=replace(plan.config, transport=transport))
        return _pipeline(plan, run_dir, log, roles)
    except BaseException:
        roles.close()
        raise


def _pipeline(plan: Plan, run_dir: Path, log: Log, roles: Roles) -> Pipeline:
    config, c, counters, rounds = plan.config, ray_config(plan), Counters(), in_rounds(plan)
    predictor = None
    if c.inference == "central":
        make = partial(predictor_role, plan)
        predictor = roles.add("predictor", c.predictor, make, AsyncWorker)
    collectors = [
        driver.RemoteCollector(role, i, make_learner_side(config.transport, i))
        for i, role in enumerate(_collectors(plan, roles))
    ]
    role = roles.add("evaluator", c.evaluator, partial(evaluator_role, plan))
    policy = build.make_policy(plan)
    source = _source(plan, roles, collectors, predictor, policy, counters)
    buffer = _buffer(plan, policy, log)
    learner = build.make_learner(_for_rounds(plan), policy, buffer, counters, log)
    evaluator = driver.RemoteEvaluator(role, roles)
    parts = Parts(run_dir, log, LoopProgress(counters), source, policy, buffer, learner, evaluator)
    evaluations = driver.RayEvaluations(
        config=config.run, parts=parts, evaluator=evaluator, rounds=rounds
    )
    warned = not c.strict  # without strict, inexact resumes are expected
    return build.with_loop(plan, parts, evaluations, warned=warned)


def _collectors(plan: Plan, roles: Roles) -> list[Role | Member]:
    """Start the processes of the collectors."""
    c, per_process, members = ray_config(plan), ray_config(plan).collectors_per_process, []
    if per_process == 1:
        return [
            roles.add(f"collector {i}", c.collector, partial(collector_role, plan, i))
            for i in range(c.num_actors)
        ]
    for first in range(0, c.num_actors, per_process):
        numbers = range(first, min(first + per_process, c.num_actors))
        name, make = (
            f"process of collectors {first} to {numbers[-1]}",
            partial(collector_threads, plan, numbers),
        )
        role = roles.add(name, c.collector, make, AsyncWorker)
        members += [Member(f"collector {n}", role, i) for i, n in enumerate(numbers)]
    return [*members]


def _processes(c: RayConfig) -> int:
    """Return how many processes the collectors have."""
    return math.ceil(c.num_actors / c.collectors_per_process)


def _source(
    plan: Plan, roles: Roles, collectors: list[driver.RemoteCollector], predictor: Role | None,
    policy: Policy, counters: Counters,
) -> driver.RaySource:  # fmt: skip
    config, c, transport = plan.config, ray_config(plan), plan.config.transport
    weights = driver.Weights(
        policy, make_learner_side(transport), coded=transport.name == "coded",
        half=transport.copies == "bf16", keep=transport.keep,
    )  # fmt: skip
    explore, actions = build.explore_of(plan, c.num_actors), ActionCounts(plan.row_spec.action)
    return driver.RaySource(
        roles, collectors, predictor, weights, CollectMetrics(counters, explore, actions),
        check=RowCheck(plan.row, plan.columns), rounds=in_rounds(plan),
        publish_every=c.weights_every * c.num_actors, max_seconds=config.watchdog.max_seconds,
    )  # fmt: skip


def _for_rounds(plan: Plan) -> Plan:
    """Return the learner's plan, in which a round is one chunk."""
    learner, count = plan.config.learner, ray_config(plan).num_actors
    updates = learner.update_per_collect
    if updates is None or plan.config.policy.on_policy or not in_rounds(plan):
        return plan
    learner = replace(learner, update_per_collect=updates * count)
    return replace(plan, config=replace(plan.config, learner=learner))


def _buffer(plan: Plan, policy: Policy, log: Log) -> Replay | Mixed | Rollout | Rollouts:
    """Return the replay or the rollouts of all collectors."""
    config, count = plan.config, ray_config(plan).num_actors
    if config.policy.on_policy:
        rollouts = [build.make_rollout(plan, policy.actor(plan.columns)) for _ in range(count)]
        return Rollouts(rollouts) if count > 1 else rollouts[0]
    if count == 1:
        return build.make_store(plan, note=log.note)
    assert plan.window is not None
    columns = plan.columns * count
    layout = make_layout(config, plan.row, plan.window, columns, parts=count)
    plan = replace(plan, columns=columns, layout=layout)
    return build.make_replay(plan, note=log.note, count=count)


def _connect(c: RayConfig) -> Cluster:
    """Connect to Ray and reserve the resources of all roles."""
    wanted = [c.evaluator, *[c.collector] * _processes(c)]
    wanted += [c.predictor] if c.inference == "central" else []
    custom: dict[str, float] = {}
    for role in wanted:
        for resource, amount in role.resources.items():
            custom[resource] = custom.get(resource, 0.0) + float(amount)
    require_head(c.address)
    cpus, gpus = sum(role.num_cpus for role in wanted), sum(role.num_gpus for role in wanted)
    return Cluster(c.address, cpus=cpus, gpus=gpus, custom=custom)


def _link(plan: Plan, cluster: Cluster, log: Log) -> float:
    """Return the bytes/s between roles: configured, infinite on one machine, or measured."""
    transport = plan.config.transport
    if transport.link_mbps is not None:
        return transport.link_mbps * 125_000
    if cluster.local or transport.name != "auto":
        return math.inf
    speed = link_speed()
    if math.isfinite(speed):
        log.note(f"transport.link_mbps: measured {speed / 125_000:.0f} Mbit/s between two nodes")
    return speed
