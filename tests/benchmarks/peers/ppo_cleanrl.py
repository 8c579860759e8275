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
from common import ENV, Run, greedy_returns, integers
from common import PPO as S
from gymnasium.vector import AutoresetMode, SyncVectorEnv
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


def main():
    seed, _, env_steps = integers(sys.argv[1:])
    run = Run()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    envs = SyncVectorEnv([make_env] * S.ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=S.LR, eps=S.EPS)
    run.evaluate = lambda: greedy_returns(agent.actor)

    obs = torch.zeros((S.STEPS, S.ENVS, 4))
    actions, logprobs, rewards, dones, values = (torch.zeros((S.STEPS, S.ENVS)) for _ in range(5))
    global_step = updates = 0
    next_obs, _ = envs.reset(seed=seed)
    next_obs, next_done = torch.Tensor(next_obs), torch.zeros(S.ENVS)
    iterations = -(-env_steps // (S.ENVS * S.STEPS))
    for iteration in range(iterations):
        frac = 1.0 - iteration / iterations
        optimizer.param_groups[0]["lr"] = frac * S.LR
        clip = frac * S.CLIP
        for step in range(S.STEPS):
            global_step += S.ENVS
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
            for t in reversed(range(S.STEPS)):
                nextnonterminal = 1.0 - (next_done if t == S.STEPS - 1 else dones[t + 1])
                nextvalues = next_value if t == S.STEPS - 1 else values[t + 1]
                delta = rewards[t] + S.GAMMA * nextvalues * nextnonterminal - values[t]
                lastgaelam = delta + S.GAMMA * S.LAMBDA * nextnonterminal * lastgaelam
                advantages[t] = lastgaelam
            returns = advantages + values

        b_obs, b_actions, b_logprobs = obs.reshape(-1, 4), actions.reshape(-1), logprobs.reshape(-1)
        b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
        b_inds, clipfracs = np.arange(S.ENVS * S.STEPS), []
        for _ in range(S.EPOCHS):
            np.random.shuffle(b_inds)
            for start in range(0, S.ENVS * S.STEPS, S.BATCH):
                mb = b_inds[start : start + S.BATCH]
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
                loss = pg_loss - S.ENTROPY * entropy.mean() + v_loss * S.VALUE
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), S.NORM)
                optimizer.step()
                updates += 1
        run.after(global_step)
    run.after(global_step, last=True)
    run.answer(global_step, updates, agent)


if __name__ == "__main__":
    main()
