"""DI-engine's DQN, trained or resumed: python killed_diengine.py SEED STEPS EVERY.

As its documentation does ("Loading Pre-trained Models and Resuming Training"): serial_pipeline with
``load_ckpt_before_run`` and ``resume_training``.
"""

from pathlib import Path

import ding
import torch
from common import Killed, cartpole_state, globals_state, note, serve_trainings
from ding.entry import serial_entry
from ding.worker.learner import LearnerHook
from dizoo.classic_control.cartpole.config.cartpole_dqn_config import create_config, main_config

SAMPLE = 8  # env steps per collect, one of each environment
CHECKPOINTS = Path("cartpole_dqn_seed0/ckpt")


class Report(LearnerHook):
    """Notes what the hook that saves, whose priority is 20, has saved."""

    def __call__(self, learner) -> None:
        if learner.last_iter.val % Commander.save_every == 0:
            Commander.last.write("saved")


class Commander(serial_entry.BaseSerialCommander):
    """Knows all parts of the pipeline; changes nothing."""

    save_every, resume = 0, False

    def __init__(self, cfg, learner, *parts) -> None:
        super().__init__(cfg, learner, *parts)
        Commander.last = self
        learner.register_hook(Report("report", 100, position="after_iter"))

    def write(self, event: str) -> None:
        learner, state = self._learner, dict(self._learner.policy.state_dict())
        rows = [[row.data[k] for k in ("obs", "action", "reward")]
                for row in self._replay_buffer.buffer.storage]  # fmt: skip
        note(
            event, self._collector.envstep, optimizer=state.pop("optimizer"), weights=state,
            replay=rows, counters=[learner.train_iter, self._collector.envstep],
            environment=[cartpole_state(e._env) for e in self._collector._env._envs],
            generators=globals_state(),
        )  # fmt: skip

    def step(self):
        if Commander.resume:
            self.write("resumed")
        Commander.resume = False
        return super().step()


def train(seed: int, steps: int, every: int) -> None:
    updates = Killed.UPDATES * SAMPLE // Killed.COLLECT
    Commander.save_every = every * updates // SAMPLE
    main_config.env.stop_value, p = 1e9, main_config.policy
    p.discount_factor, p.model.encoder_hidden_size_list = Killed.GAMMA, Killed.HIDDEN
    p.learn.update(update_per_collect=updates, batch_size=Killed.BATCH, learning_rate=Killed.LR)
    p.learn.learner = {"hook": {"save_ckpt_after_iter": Commander.save_every}}
    p.eval.evaluator.eval_freq = 4 * Commander.save_every
    p.other.eps.update(type="linear", start=1.0, end=Killed.EPS_END, decay=Killed.EPS_OVER)
    p.other.replay_buffer.replay_buffer_size = Killed.CAPACITY
    found = [int(path.name[10:-8]) for path in CHECKPOINTS.glob("iteration_*.pth.tar")]
    for iteration in sorted(found, reverse=True):  # the newest that can be read
        path = CHECKPOINTS / f"iteration_{iteration}.pth.tar"
        try:
            torch.load(path)
        except (EOFError, RuntimeError):
            note("unreadable", iteration)
            continue
        p.learn.learner["hook"]["load_ckpt_before_run"] = str(path)
        p.learn.resume_training = Commander.resume = True
        break
    serial_entry.BaseSerialCommander = Commander
    serial_entry.serial_pipeline((main_config, create_config), seed=seed, max_env_step=steps)
    Commander.last.write("done")


if __name__ == "__main__":
    serve_trainings(ding.__version__, train)
