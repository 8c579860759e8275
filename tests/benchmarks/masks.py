"""Action masks: no forbidden action is ever taken, and what a mask is worth.

``python -m tests.benchmarks.masks [--steps N] [--only WORD ...] [--quick]``: runs of many
policies in boards whose cells may be chosen once. The environments raise when one is chosen again,
in collecting and in evaluations, whatever explores (epsilon, the ladder, Boltzmann, noise, uniform
actions). ``--steps`` of all runs together, default 1 000 000. Exit code 1 when a run failed.

What a mask is worth: ``rlrun -m`` lines in tests/benchmarks/README.md.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlrun.build import pipeline as build
from rlrun.build.plan import make_plan
from rlrun.errors import RlrunError
from rlrun.log import Log
from rlrun.pipeline.stop import StopRequest
from tests.compose import config

SHIPS = "env=battleship env.strict=true env.show=last"
MINES = "env=minesweeper env.strict=true env.show=last"
BOARD = "env=battleship env.strict=true"
REPLAY = "collector.num_envs=8 collector.n_sample=64 learner.learning_starts=300"
REPLAY += " learner.update_per_collect=1 learner.replay_ratio=null learner.batch_size=8"
ROLLOUT = "collector.num_envs=16 collector.n_sample=512 torso.hidden=[32]"
TEAM = "env=pettingzoo env.id=pettingzoo:tests.env.zoo_masked"
SMALL = "memory.hidden=16 policy.head_hidden=[16] torso.hidden=[16]"
LINES = (  # the recurrent ones first
    f"policy=r2d2 {SHIPS} {REPLAY} {SMALL}",
    f"policy=r2d2 {MINES} {REPLAY} {SMALL} explore=boltzmann",
    f"policy=r2d2 {SHIPS} {REPLAY} {SMALL} policy.munchausen=0.9"
    " policy.double=false policy.value_rescale_eps=null",
    f"policy=r2d2_c51 {SHIPS} {REPLAY} {SMALL} policy.noisy=9",
    f"policy=r2d2_qr {MINES} {REPLAY} {SMALL}",
    f"policy=drqn {MINES} {REPLAY} {SMALL} explore=ladder",
    f"policy=drqn {SHIPS} {REPLAY} {SMALL} explore=anneal",
    f"policy=ppo memory=lstm {SHIPS} {ROLLOUT} memory.hidden=16",
    f"policy=ppo memory=gru policy.prev_inputs=true {MINES} {ROLLOUT} memory.hidden=16",
    f"policy=a2c memory=lstm {MINES} {ROLLOUT} memory.hidden=16",
    f"policy=impala memory=gru {SHIPS} {ROLLOUT} memory.hidden=16",
    f"policy=qmix {TEAM} {REPLAY}",
    f"policy=vdn {TEAM} {REPLAY}",
    f"policy=dqn {BOARD} {REPLAY}",
    f"policy=rainbow {BOARD} {REPLAY}",
    f"policy=iqn {BOARD} {REPLAY}",
    f"policy=mdqn {BOARD} {REPLAY}",
    f"policy=random {BOARD} collector.num_envs=16 collector.n_sample=512",
    f"policy=ppo {BOARD} {ROLLOUT}",
)


def run(line: str, steps: int, run_dir: Path) -> int:
    """Env steps collected by a run of the overrides; RlrunError when an action was forbidden."""
    off = f"logger.progress=off logger.tensorboard=false run.total_steps={steps} seed=3"
    off += f" run.eval_every={max(steps // 2, 1)} run.eval_episodes=20 learner.threads=1"
    c = config(*line.split(), *off.split())
    with Log(c.logger, run_dir, total_steps=steps, title="") as log:
        pipeline = build.make_pipeline(make_plan(c), run_dir, log)
        try:
            pipeline.run(StopRequest())
        finally:
            pipeline.close()
    return pipeline.counters.env_steps


def lines(steps: int, only: Sequence[str] = ()) -> Iterator[tuple[bool, str]]:
    """Yield (no action was forbidden, text) of every run; ``steps`` of all of them together."""
    chosen = [line for line in LINES if not only or any(word in line for word in only)]
    for line in chosen:
        begin = time.perf_counter()
        name = line.replace(f" {REPLAY}", "").replace(f" {ROLLOUT}", "").replace(f" {SMALL}", "")
        try:
            with tempfile.TemporaryDirectory() as folder:
                done = run(line, -(-steps // len(chosen)), Path(folder))
            text, good = f"{done} env steps, 0 forbidden actions", True
        except RlrunError as e:
            text, good = str(e), False
        yield good, f"{name}: {text} ({time.perf_counter() - begin:.0f} s)"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true", help="400 env steps a run")
    o = parser.parse_args(argv)
    good = True
    for ok, text in lines(400 * len(LINES) if o.quick else o.steps, o.only):
        print(text, flush=True)
        good &= ok
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
