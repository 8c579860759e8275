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
from dqn_common import (
    BATCH,
    CAPACITY,
    CLIP,
    COLLECT,
    ENV,
    EPISODES,
    EVAL_SEED,
    GAMMA,
    HIDDEN,
    LR,
    START,
    UPDATES,
    Run,
    epsilon,
)
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.nn import functional as F


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(4, HIDDEN[0]), nn.ReLU(), nn.Linear(HIDDEN[0], HIDDEN[1]), nn.ReLU(),
            nn.Linear(HIDDEN[1], 2),
        )  # fmt: skip

    def forward(self, x):
        return self.network(x)


class ReplayBuffer:
    def __init__(self):
        self.obs = np.zeros((CAPACITY, 4), np.float32)
        self.next_obs = np.zeros((CAPACITY, 4), np.float32)
        self.actions = np.zeros((CAPACITY, 1), np.int64)
        self.rewards = np.zeros(CAPACITY, np.float32)
        self.dones = np.zeros(CAPACITY, np.float32)
        self.position, self.full = 0, False

    def add(self, obs, next_obs, action, reward, done):
        i = self.position
        self.obs[i], self.next_obs[i], self.actions[i] = obs[0], next_obs[0], action[0]
        self.rewards[i], self.dones[i] = reward[0], done[0]
        self.position = (i + 1) % CAPACITY
        self.full = self.full or self.position == 0

    def sample(self):
        rows = np.random.randint(0, CAPACITY if self.full else self.position, BATCH)
        fields = (self.obs, self.next_obs, self.actions, self.rewards, self.dones)
        return [torch.from_numpy(field[rows]) for field in fields]


def make_env(seed):
    def thunk():
        env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(ENV))
        env.action_space.seed(seed)
        return env

    return thunk


def evaluate(q_network):
    envs = SyncVectorEnv([lambda: gymnasium.make(ENV)] * EPISODES)
    obs, _ = envs.reset(seed=EVAL_SEED)
    returns, running = np.zeros(EPISODES), np.ones(EPISODES, bool)
    while running.any():
        with torch.no_grad():
            actions = q_network(torch.Tensor(obs)).argmax(1).numpy()
        obs, rewards, terminations, truncations, _ = envs.step(actions)
        returns += rewards * running
        running &= ~(terminations | truncations)
    envs.close()
    return returns.mean()


def main():
    seed, threads, env_steps = (int(a) for a in sys.argv[1:])
    torch.set_num_threads(threads)
    run = Run()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    envs = SyncVectorEnv([make_env(seed)], autoreset_mode=AutoresetMode.SAME_STEP)
    q_network, target_network = QNetwork(), QNetwork()
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=LR)
    rb = ReplayBuffer()
    run.evaluate = lambda: evaluate(q_network)
    updates = 0

    obs, _ = envs.reset(seed=seed)
    total = -(-env_steps // COLLECT) * COLLECT
    for global_step in range(1, total + 1):
        if random.random() < epsilon(global_step - 1):
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
        if global_step > START:
            for _ in range(UPDATES):
                s, s_next, a, r, d = rb.sample()
                with torch.no_grad():
                    target_max, _ = target_network(s_next).max(dim=1)
                    td_target = r + GAMMA * target_max * (1 - d)
                loss = F.smooth_l1_loss(q_network(s).gather(1, a).squeeze(), td_target)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(q_network.parameters(), CLIP)
                optimizer.step()
                updates += 1
            pairs = zip(target_network.parameters(), q_network.parameters(), strict=True)
            for target_param, q_param in pairs:
                target_param.data.copy_(q_param.data)
        run.after(global_step)
    run.after(total, last=True)
    parameters = sum(p.numel() for p in q_network.parameters())
    print(run.answer(total, updates, parameters, threads=torch.get_num_threads()))


if __name__ == "__main__":
    main()
