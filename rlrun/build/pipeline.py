"""From a validated config to running objects, and the run's life around the pipeline."""

from functools import partial
from pathlib import Path

from rlrun.buffer.mixed import Mixed
from rlrun.buffer.replay import Replay
from rlrun.buffer.rollout import Rollout
from rlrun.build.policy import make_bonus, make_policy
from rlrun.build.replay import make_cutter, make_rollout, make_store
from rlrun.build.transport import make_collector_end
from rlrun.env import Env, make_env
from rlrun.env.framestack import make_frame_stack, stack_space
from rlrun.kernels.dqn import DQNKernel
from rlrun.log import Log
from rlrun.pipeline.collector import Collector
from rlrun.pipeline.evaluate import Evaluator
from rlrun.pipeline.learner import Learner, RolloutLearner
from rlrun.pipeline.offline import Offline
from rlrun.pipeline.overlapped import Overlapped
from rlrun.pipeline.profile import Profiler
from rlrun.pipeline.remote import Remote
from rlrun.pipeline.serial import Serial
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
        stack=make_frame_stack(config.env.frame_stack, env.obs_space, columns),
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
    if config.learner.compile and isinstance(getattr(policy, "step", None), DQNKernel):
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
