"""Action masks: no forbidden action is ever taken.

Runs of many policies (``--only WORD ...``: some) in boards whose cells may be chosen once. The
environments raise when one is chosen again, in collecting and in evaluations, whatever explores
(epsilon, the ladder, Boltzmann, noise, uniform actions). ``--env-steps N`` of all runs together,
default 1 000 000. What a mask is worth: ``rlrun -m`` lines in tests/benchmarks/README.md.
"""

import json
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from tests.benchmarks import runs
from tests.benchmarks.rows import PeerFailed

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
    """Env steps collected by a run of the overrides; Failed when an action was forbidden."""
    off = f"logger.progress=off logger.tensorboard=false run.total_steps={steps} seed=3"
    off += f" run.eval_every={max(steps // 2, 1)} run.eval_episodes=20 learner.threads=1 -q"
    trust = mock.patch.dict(os.environ, {"RLRUN_TRUST": "tests"})
    with trust, mock.patch.object(runs, "in_process", True):
        runs.rlrun(*line.split(), *off.split(), f"run.dir={run_dir}")
    return int(json.loads((run_dir / "run.json").read_text())["env_steps"])


def lines(steps: int, only: Sequence[str] = ()) -> Iterator[tuple[bool, str]]:
    """Yield (no action was forbidden, text) of every run; ``steps`` of all of them together."""
    chosen = [line for line in LINES if not only or any(word in line for word in only)]
    for line in chosen:
        begin = time.perf_counter()
        name = line.replace(f" {REPLAY}", "").replace(f" {ROLLOUT}", "").replace(f" {SMALL}", "")
        try:
            with tempfile.TemporaryDirectory() as folder:
                done = run(line, -(-steps // len(chosen)), Path(folder) / "run")
            text, good = f"{done} env steps, 0 forbidden actions", True
        except PeerFailed as e:
            text, good = str(e), False
        yield good, f"{name}: {text} ({time.perf_counter() - begin:.0f} s)"


def main(o: Namespace) -> int:
    """``--quick``: 400 env steps of each of three runs."""
    words = o.only or (["memory=gru", "policy=r2d2_qr"] if o.quick else [])
    good = True
    for ok, text in lines(o.env_steps or (1_200 if o.quick else 1_000_000), words):
        print(text, flush=True)
        good &= ok
    return 0 if good else 1
