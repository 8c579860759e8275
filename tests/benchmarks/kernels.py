"""One update of DQN, SAC and TD3 by rlrun's kernels beside autograd, without the replay.

DQN has rl-zoo3's settings of CartPole, SAC and TD3 their presets on Pendulum.
"""

from argparse import Namespace
from collections.abc import Callable

from tests.benchmarks import product
from tests.benchmarks.product import Counters
from tests.benchmarks.rows import Row, beside
from tests.compose import config

LINES = {
    "dqn": ("experiment=zoo_dqn_cartpole",),
    "sac": ("policy=sac", "env=pendulum"),
    "td3": ("policy=td3", "env=pendulum"),
}


def main(o: Namespace) -> list[Row]:
    """A row for every policy, in one thread, with denormal numbers flushed as in a run."""
    rows = []
    with product.flushed():
        for name, words in LINES.items():
            sides = [update_of(*words, f"learner.backend={by}") for by in ("numpy", "torch")]
            effort = o.rounds, o.seconds
            rows.append(beside(f"{name} update", {}, "autograd", *sides, effort, kind="speedup"))
    return rows


def update_of(*words: str) -> Callable[[], object]:
    """An update of one batch of the replay's rows."""
    c = config(*words, "learner.threads=1", "learner.target_thread=false")
    plan = product.make_plan(c)
    policy, replay = product.make_policy(plan), product.make_replay(plan)
    collector = product.make_collector(plan, Counters())
    while len(replay) < c.learner.batch_size:
        replay.add(collector.collect())
    collector.env.close()
    sample = replay.sample(c.learner.batch_size, 0)
    return lambda: policy.update(sample)
