"""PPO in one file, in the style of CleanRL's ppo.py, with rl-zoo3's CartPole-v1 settings.

usage: python ppo_cleanrl.py SEED THREADS ENV_STEPS

Needs torch and gymnasium. Prints one JSON line. One loop over rollouts, a SyncVectorEnv, plain
tensors, no logs. Off CleanRL's script: the settings, the value loss as SB3 scales it, and
environments that reset within the step (gymnasium 1).
"""

import random
import sys

import gymnasium
import numpy as np
import torch
import torch._dynamo  # a second that constructing an Adam would take from the run
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ppo_common import (
    BATCH,
    CLIP,
    ENTROPY,
    ENV,
    ENVS,
    EPISODES,
    EPOCHS,
    EPS,
    EVAL_SEED,
    GAMMA,
    LAMBDA,
    LR,
    NORM,
    STEPS,
    VALUE,
    Run,
)
from torch import nn
from torch.distributions.categorical import Categorical
from torch.nn import functional as F


def layer_init(layer, std=2**0.5):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


def network(outputs, std):
    return nn.Sequential(
        layer_init(nn.Linear(4, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
        layer_init(nn.Linear(64, outputs), std=std),
    )  # fmt: skip


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic, self.actor = network(1, 1.0), network(2, 0.01)

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


def make_env():
    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(ENV))


def evaluate(agent):
    envs = SyncVectorEnv([lambda: gymnasium.make(ENV)] * EPISODES)
    obs, _ = envs.reset(seed=EVAL_SEED)
    returns, running = np.zeros(EPISODES), np.ones(EPISODES, bool)
    while running.any():
        with torch.no_grad():
            actions = agent.actor(torch.Tensor(obs)).argmax(1).numpy()
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
    envs = SyncVectorEnv([make_env] * ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=LR, eps=EPS)
    run.evaluate = lambda: evaluate(agent)

    obs = torch.zeros((STEPS, ENVS, 4))
    actions, logprobs, rewards, dones, values = (torch.zeros((STEPS, ENVS)) for _ in range(5))
    global_step = updates = 0
    next_obs, _ = envs.reset(seed=seed)
    next_obs, next_done = torch.Tensor(next_obs), torch.zeros(ENVS)
    iterations = -(-env_steps // (ENVS * STEPS))
    for iteration in range(iterations):
        frac = 1.0 - iteration / iterations
        optimizer.param_groups[0]["lr"] = frac * LR
        clip = frac * CLIP
        for step in range(STEPS):
            global_step += ENVS
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step], logprobs[step] = action, logprob
            next_obs, reward, terminations, truncations, _ = envs.step(action.numpy())
            next_done = np.logical_or(terminations, truncations)
            rewards[step] = torch.tensor(reward).view(-1)
            next_obs, next_done = torch.Tensor(next_obs), torch.Tensor(next_done)

        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards)
            lastgaelam = 0
            for t in reversed(range(STEPS)):
                nextnonterminal = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
                nextvalues = next_value if t == STEPS - 1 else values[t + 1]
                delta = rewards[t] + GAMMA * nextvalues * nextnonterminal - values[t]
                lastgaelam = delta + GAMMA * LAMBDA * nextnonterminal * lastgaelam
                advantages[t] = lastgaelam
            returns = advantages + values

        b_obs, b_actions, b_logprobs = obs.reshape(-1, 4), actions.reshape(-1), logprobs.reshape(-1)
        b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
        b_inds, clipfracs = np.arange(ENVS * STEPS), []
        for _ in range(EPOCHS):
            np.random.shuffle(b_inds)
            for start in range(0, ENVS * STEPS, BATCH):
                mb = b_inds[start : start + BATCH]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(
                    b_obs[mb], b_actions.long()[mb]
                )
                logratio = newlogprob - b_logprobs[mb]
                ratio = logratio.exp()
                with torch.no_grad():
                    ((ratio - 1) - logratio).mean()  # approx_kl
                    clipfracs += [((ratio - 1.0).abs() > clip).float().mean().item()]
                mb_advantages = b_advantages[mb]
                mb_advantages = (mb_advantages - mb_advantages.mean()) / (
                    mb_advantages.std() + 1e-8
                )
                pg_loss = torch.max(
                    -mb_advantages * ratio,
                    -mb_advantages * torch.clamp(ratio, 1 - clip, 1 + clip),
                ).mean()
                v_loss = F.mse_loss(newvalue.view(-1), b_returns[mb])
                loss = pg_loss - ENTROPY * entropy.mean() + v_loss * VALUE
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), NORM)
                optimizer.step()
                updates += 1
        run.after(global_step)
    run.after(global_step, last=True)
    parameters = sum(p.numel() for p in agent.parameters())
    print(run.answer(global_step, updates, parameters, threads=torch.get_num_threads()))


if __name__ == "__main__":
    main()
