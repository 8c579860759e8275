"""SB3's DQN with its replay, trained or resumed: python killed_baselines.py SEED STEPS EVERY.

As its documentation does: a CheckpointCallback that saves the replay too, then ``DQN.load``,
``load_replay_buffer`` and ``learn(reset_num_timesteps=False)``.
"""

from pathlib import Path

import stable_baselines3
from common import ENV, Killed, cartpole_state, newest, note, serve_trainings
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env


def write(event: str, model: DQN) -> None:
    replay, end = model.replay_buffer, model.replay_buffer.pos
    note(
        event, model.num_timesteps, weights=model.policy.state_dict(),
        optimizer=model.policy.optimizer.state_dict(),
        replay=[end, replay.observations[:end], replay.actions[:end], replay.rewards[:end]],
        counters=[model.num_timesteps, model._n_updates, model._n_calls, model.exploration_rate],
        environment=cartpole_state(model.get_env().envs[0]),
    )  # fmt: skip


class Report(BaseCallback):
    """Notes what the CheckpointCallback before it has saved."""

    def _on_step(self) -> bool:
        if Path(f"dqn_replay_buffer_{self.num_timesteps}_steps.pkl").exists():
            write("saved", self.model)
        return True


def train(seed: int, steps: int, every: int) -> None:
    def load(step: int) -> DQN:
        model = DQN.load(f"dqn_{step}_steps", env=make_vec_env(ENV, 1, seed=seed))
        model.load_replay_buffer(f"dqn_replay_buffer_{step}_steps")
        return model

    if model := newest([int(p.stem.split("_")[1]) for p in Path().glob("dqn_*_steps.zip")], load):
        write("resumed", model)
    model = model or DQN(
        "MlpPolicy", make_vec_env(ENV, 1, seed=seed), seed=seed, device="cpu", gamma=Killed.GAMMA,
        learning_rate=Killed.LR, batch_size=Killed.BATCH, buffer_size=Killed.CAPACITY,
        learning_starts=Killed.START, train_freq=Killed.COLLECT, gradient_steps=Killed.UPDATES,
        target_update_interval=4 * Killed.TARGET, exploration_final_eps=Killed.EPS_END,
        exploration_fraction=Killed.EPS_OVER / steps, policy_kwargs={"net_arch": Killed.HIDDEN},
    )  # fmt: skip
    callbacks = [CheckpointCallback(every, ".", "dqn", save_replay_buffer=True), Report()]
    model.learn(steps - model.num_timesteps, callback=callbacks, reset_num_timesteps=False)
    write("done", model)


if __name__ == "__main__":
    serve_trainings(stable_baselines3.__version__, train)
