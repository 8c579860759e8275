"""rlrun's DQN, trained or resumed by its command lines: python killed_rlrun.py SEED STEPS EVERY."""

from pathlib import Path

from common import Killed, serve_trainings

import rlrun
from rlrun.cli.main import main
from rlrun.run import build, start  # noqa: F401  # before any process is started


def train(seed: int, steps: int, every: int) -> None:
    words = f"""experiment=zoo_dqn_cartpole seed={seed} run.dir=run run.total_steps={steps}
    run.checkpoint_every={every} run.eval_every={steps} torso.hidden={Killed.HIDDEN}
    policy.lr={Killed.LR} policy.gamma={Killed.GAMMA} collector.n_sample={Killed.COLLECT}
    learner.update_per_collect={Killed.UPDATES} learner.batch_size={Killed.BATCH}
    learner.learning_starts={Killed.START} policy.target_update_every={Killed.TARGET}
    buffer.capacity={Killed.CAPACITY} learner.threads=1 logger.progress=off"""
    saved = any(Path("run").glob("checkpoints/step_*"))
    if code := main(["resume", "run"] if saved else words.replace(", ", ",").split()):
        raise SystemExit(f"exit code {code}")


if __name__ == "__main__":
    serve_trainings(rlrun.__version__, train)
