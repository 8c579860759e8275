"""TorchRL's DQNTrainer, trained or resumed: python killed_torchrl.py SEED STEPS EVERY.

As its documentation does: a ``Checkpoint`` with the states of the generators, rotated, and
``load_from_file`` of the newest.
"""

import gymnasium as gym
import torch
import torchrl
from common import ENV, Killed, cartpole_state, note, serve_trainings
from tensordict.nn import TensorDictSequential
from torch.optim import Adam
from torchrl.checkpoint import Checkpoint, CheckpointRotation, GlobalRNGState
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.libs.gym import GymWrapper
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate
from torchrl.trainers.algorithms import DQNTrainer


class Rotation(CheckpointRotation):
    """Notes every checkpoint that is complete."""

    def save(self, checkpoint, **given):
        path = super().save(checkpoint, **given)
        self.write("saved")
        return path


def train(seed: int, steps: int, every: int) -> None:
    cartpole = gym.make(ENV)
    env = GymWrapper(cartpole)
    env.set_seed(seed)
    spec = env.action_spec
    net = MLP(4, 2, num_cells=Killed.HIDDEN, activation_class=torch.nn.ReLU)
    actor = QValueActor(net, in_keys=["observation"], spec=spec)
    greedy = EGreedyModule(spec, 1.0, Killed.EPS_END, annealing_num_steps=Killed.EPS_OVER)
    loss = DQNLoss(actor, action_space=spec, delay_value=True)
    loss.make_value_estimator(gamma=Killed.GAMMA)
    optimizer, storage = Adam(loss.parameters(), lr=Killed.LR), LazyTensorStorage(Killed.CAPACITY)
    replay = TensorDictReplayBuffer(storage=storage, batch_size=Killed.BATCH)
    rotation = Rotation("checkpoints", keep_last=2)
    trainer = DQNTrainer(
        collector=Collector(env, TensorDictSequential(actor, greedy), total_frames=-1,
                            frames_per_batch=Killed.COLLECT),
        loss_module=loss, optimizer=optimizer, replay_buffer=replay, greedy_module=greedy,
        target_net_updater=HardUpdate(loss, value_network_update_interval=Killed.TARGET), seed=seed,
        checkpoint=Checkpoint(rng=GlobalRNGState()), checkpoint_rotation=rotation, frame_skip=1,
        save_trainer_interval=every - 1, enable_logging=False, progress_bar=False,
        total_frames=steps, optim_steps_per_batch=Killed.UPDATES,
    )  # fmt: skip

    def write(event: str) -> None:
        rows = replay[:]
        note(
            event, trainer.collected_frames, weights=dict(loss.state_dict()),
            optimizer=optimizer.state_dict(), environment=cartpole_state(cartpole),
            replay=[len(replay), rows["observation"], rows["action"], rows["next", "reward"]],
            counters=[trainer.collected_frames, trainer._optim_count, greedy.eps],
        )  # fmt: skip

    rotation.write = write
    if rotation.latest() is not None:
        trainer.load_from_file(rotation.latest())
        write("resumed")
    trainer.train()
    write("done")


if __name__ == "__main__":
    serve_trainings(torchrl.__version__, train)
