"""DQN in one file, in the style of CleanRL's dqn.py, with rl-zoo3's CartPole-v1 settings.

usage: python dqn_cleanrl.py SEED THREADS ENV_STEPS

Needs torch and gymnasium. Prints one JSON line. One loop over env steps, a SyncVectorEnv of one
environment, a replay of plain numpy arrays, no logs. Off CleanRL's script: the settings, SB3's
smooth-L1 loss and gradient clipping, and environments that reset within the step (gymnasium 1).
"""

import random
import sys

import gymnasium
import numpy as np
import torch
import torch._dynamo  # a second that constructing an Adam would take from the run
from common import COLLECT, ENV, Run, greedy_returns, integers
from common import DQN as S
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.nn import functional as F


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(4, S.HIDDEN[0]), nn.ReLU(), nn.Linear(S.HIDDEN[0], S.HIDDEN[1]), nn.ReLU(),
            nn.Linear(S.HIDDEN[1], 2),
        )  # fmt: skip

    def forward(self, x):
        return self.network(x)


class ReplayBuffer:
    def __init__(self):
        self.obs = np.zeros((S.CAPACITY, 4), np.float32)
        self.next_obs = np.zeros((S.CAPACITY, 4), np.float32)
        self.actions = np.zeros((S.CAPACITY, 1), np.int64)
        self.rewards = np.zeros(S.CAPACITY, np.float32)
        self.dones = np.zeros(S.CAPACITY, np.float32)
        self.position, self.full = 0, False

    def add(self, obs, next_obs, action, reward, done):
        i = self.position
        self.obs[i], self.next_obs[i], self.actions[i] = obs[0], next_obs[0], action[0]
        self.rewards[i], self.dones[i] = reward[0], done[0]
        self.position = (i + 1) % S.CAPACITY
        self.full = self.full or self.position == 0

    def sample(self):
        rows = np.random.randint(0, S.CAPACITY if self.full else self.position, S.BATCH)
        fields = (self.obs, self.next_obs, self.actions, self.rewards, self.dones)
        return [torch.from_numpy(field[rows]) for field in fields]


def make_env(seed):
    def thunk():
        env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(ENV))
        env.action_space.seed(seed)
        return env

    return thunk


def main():
    seed, _, env_steps = integers(sys.argv[1:])
    run = Run()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    envs = SyncVectorEnv([make_env(seed)], autoreset_mode=AutoresetMode.SAME_STEP)
    q_network, target_network = QNetwork(), QNetwork()
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=S.LR)
    rb = ReplayBuffer()
    run.evaluate = lambda: greedy_returns(q_network)
    updates = 0

    obs, _ = envs.reset(seed=seed)
    total = -(-env_steps // COLLECT) * COLLECT
    for global_step in range(1, total + 1):
        if random.random() < S.epsilon(global_step - 1):
            actions = np.array([envs.single_action_space.sample()])
        else:
            with torch.no_grad():
                actions = torch.argmax(q_network(torch.Tensor(obs)), dim=1).numpy()
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        real_next_obs = next_obs
        if terminations[0] or truncations[0]:
            real_next_obs = [infos["final_obs"][0]]
        rb.add(obs, real_next_obs, actions, rewards, terminations)
        obs = next_obs

        if global_step % COLLECT:
            continue
        if global_step > S.START:
            for _ in range(S.UPDATES):
                s, s_next, a, r, d = rb.sample()
                with torch.no_grad():
                    target_max, _ = target_network(s_next).max(dim=1)
                    td_target = r + S.GAMMA * target_max * (1 - d)
                loss = F.smooth_l1_loss(q_network(s).gather(1, a).squeeze(), td_target)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(q_network.parameters(), S.CLIP)
                optimizer.step()
                updates += 1
            pairs = zip(target_network.parameters(), q_network.parameters(), strict=True)
            for target_param, q_param in pairs:
                target_param.data.copy_(q_param.data)
        run.after(global_step)
    run.after(total, last=True)
    run.answer(total, updates, q_network)


if __name__ == "__main__":
    main()
