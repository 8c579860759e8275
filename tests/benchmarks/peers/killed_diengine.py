"""DI-engine's DQN, trained or resumed: python killed_diengine.py SEED STEPS EVERY.

As its documentation does ("Loading Pre-trained Models and Resuming Training"): serial_pipeline with
``load_ckpt_before_run`` and ``resume_training``. ``Commander`` and ``Report`` only take notes.
"""

from pathlib import Path

import ding
import torch
from common import Killed, cartpole_state, newest, note, serve_trainings
from ding.entry import serial_entry
from ding.worker.learner import LearnerHook
from dizoo.classic_control.cartpole.config.cartpole_dqn_config import create_config, main_config

ENVS, FILE = 8, "cartpole_dqn_seed0/ckpt/iteration_{}.pth.tar"


class Report(LearnerHook):
    def __call__(self, learner) -> None:
        if learner.last_iter.val % Commander.save_every == 0:
            Commander.last.write("saved")


class Commander(serial_entry.BaseSerialCommander):
    save_every, resume = 0, False

    def __init__(self, cfg, learner, *parts) -> None:
        super().__init__(cfg, learner, *parts)
        Commander.last = self
        learner.register_hook(Report("report", 100, position="after_iter"))  # 20 saves

    def write(self, event: str) -> None:
        learner, state = self._learner, dict(self._learner.policy.state_dict())
        rows = [row.data for row in self._replay_buffer.buffer.storage]
        note(
            event, self._collector.envstep, optimizer=state.pop("optimizer"), weights=state,
            replay=[[row[k] for k in ("obs", "action", "reward")] for row in rows],
            counters=[learner.train_iter, self._collector.envstep],
            environment=[cartpole_state(e._env) for e in self._collector._env._envs],
        )  # fmt: skip

    def step(self):
        if Commander.resume:
            self.write("resumed")
        Commander.resume = False
        return super().step()


def train(seed: int, steps: int, every: int) -> None:
    updates = Killed.UPDATES * ENVS // Killed.COLLECT
    Commander.save_every = every * updates // ENVS
    main_config.env.stop_value, p = 1e9, main_config.policy
    p.discount_factor, p.model.encoder_hidden_size_list = Killed.GAMMA, Killed.HIDDEN
    p.learn.update(update_per_collect=updates, batch_size=Killed.BATCH, learning_rate=Killed.LR)
    p.learn.learner = {"hook": {"save_ckpt_after_iter": Commander.save_every}}
    p.eval.evaluator.eval_freq = 4 * Commander.save_every
    p.other.eps.update(type="linear", start=1.0, end=Killed.EPS_END, decay=Killed.EPS_OVER)
    p.other.replay_buffer.replay_buffer_size = Killed.CAPACITY
    saved = [int(path.name[10:-8]) for path in Path().glob(FILE.format("*"))]
    if path := newest(saved, lambda n: torch.load(FILE.format(n)) and FILE.format(n)):
        p.learn.learner["hook"]["load_ckpt_before_run"] = path
        p.learn.resume_training = Commander.resume = True
    serial_entry.BaseSerialCommander = Commander
    serial_entry.serial_pipeline((main_config, create_config), seed=seed, max_env_step=steps)
    Commander.last.write("done")


if __name__ == "__main__":
    serve_trainings(ding.__version__, train)
