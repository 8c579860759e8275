"""Data for the codec figures: PPO on CartPole, an LSTM-512 double-Q learner, Breakout-like frames.

All of it is made here in bare torch, in seconds to minutes: what a codec sees are the observations
and weights of a learner at work, whichever library it is written in.
"""

import copy
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ENVS, STEPS, EPOCHS, BATCHES = 8, 128, 4, 4
LR, CLIP, GAMMA, LAMBDA = 2.5e-4, 0.2, 0.99, 0.95


@dataclass(frozen=True)
class PPORun:
    """Rollouts and a snapshot of the weights after each update."""

    obs: np.ndarray  # float64 [steps, envs, 4], the environment's own state
    action: np.ndarray  # int64 [steps, envs]
    weights: list[np.ndarray]  # flat, in the dtype of the net
    returns: float  # mean of the last 50 episodes


def ppo(dtype: torch.dtype, updates: int, seed: int = 0) -> PPORun:
    """A run of ``updates`` × 1024 environment steps; the learning rate anneals to 0."""
    torch.manual_seed(seed)
    env = gymnasium.make_vec("CartPole-v1", ENVS, vectorization_mode="vector_entry_point")
    env.reset(seed=seed)
    actor, critic = mlp(2, dtype), mlp(1, dtype)
    parameters = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=LR, eps=1e-5)
    obs, action, weights, episodes = [], [], [flat(parameters)], []
    age = np.zeros(ENVS)
    for update in range(updates):
        adam.param_groups[0]["lr"] = LR * (1 - update / updates)
        rows = []
        for _ in range(STEPS):
            state = env.unwrapped.state.T.copy()
            with torch.no_grad():
                logits = actor(torch.from_numpy(state).to(dtype))
            chosen = torch.distributions.Categorical(logits=logits).sample()
            _, _, terminated, truncated, _ = env.step(chosen.numpy())
            age += 1
            done = terminated | truncated
            episodes += age[done].tolist()
            age[done] = -1  # the next step is the reset
            rows.append((state, chosen.numpy(), done))
        after = env.unwrapped.state.T.copy()
        states, chosen_all, dones = (np.stack(x) for x in zip(*rows, strict=True))
        obs.append(states)
        action.append(chosen_all)
        learn(actor, critic, adam, states, chosen_all, dones, after, dtype)
        weights.append(flat(parameters))
    env.close()
    return PPORun(
        np.concatenate(obs), np.concatenate(action), weights, float(np.mean(episodes[-50:]))
    )


def mlp(out: int, dtype: torch.dtype) -> nn.Module:
    """4-64-64-out with tanh, orthogonal."""
    net = nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, out)
    )
    for layer in net[::2]:
        nn.init.orthogonal_(layer.weight, 2**0.5)
        nn.init.zeros_(layer.bias)
    return net.to(dtype)


def learn(actor, critic, adam, states, actions, dones, after, dtype) -> None:  # type: ignore[no-untyped-def]
    """Sixteen Adam steps on one rollout; reward 1 a step."""
    x, a = torch.from_numpy(states).to(dtype), torch.from_numpy(actions)
    going = torch.from_numpy(1.0 - dones).to(dtype)
    with torch.no_grad():
        value = critic(x)[..., 0]
        following = torch.cat([value[1:], critic(torch.from_numpy(after).to(dtype)).T])
        advantage, carry = torch.empty_like(value), torch.zeros(ENVS, dtype=dtype)
        for t in reversed(range(STEPS)):
            error = 1 + GAMMA * following[t] * going[t] - value[t]
            carry = error + GAMMA * LAMBDA * going[t] * carry
            advantage[t] = carry
        target = (advantage + value).reshape(-1)
        old = F.log_softmax(actor(x), -1).gather(-1, a[..., None]).reshape(-1)
    x, a, advantage = x.reshape(-1, 4), a.reshape(-1), advantage.reshape(-1)
    parameters = adam.param_groups[0]["params"]
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).chunk(BATCHES):
            logits = F.log_softmax(actor(x[rows]), -1)
            ratio = (logits.gather(-1, a[rows, None])[:, 0] - old[rows]).exp()
            gain = (advantage[rows] - advantage[rows].mean()) / (advantage[rows].std() + 1e-8)
            policy = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            entropy = -(logits.exp() * logits).sum(-1).mean()
            miss = (critic(x[rows])[:, 0] - target[rows]).square().mean()
            adam.zero_grad()
            (-policy - 0.01 * entropy + 0.25 * miss).backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            adam.step()


def flat(parameters: list[nn.Parameter]) -> np.ndarray:
    """All parameters side by side."""
    return torch.cat([p.detach().reshape(-1) for p in parameters]).numpy().copy()


class Recurrent(nn.Module):
    """Position and angle only → n → LSTM-n → dueling heads; 2.6 M parameters with n = 512."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.torso, self.lstm = nn.Linear(2, n), nn.LSTM(n, n)
        self.value = nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 1))
        self.gain = nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 2))

    def forward(self, obs: Tensor) -> Tensor:
        """Q [T, B, 2] of observations [T, B, 2]."""
        h = self.lstm(F.relu(self.torso(obs)))[0]
        gain = self.gain(h)
        return self.value(h) + gain - gain.mean(-1, keepdim=True)


def lstm(
    run: PPORun, eps: float, updates: int, slow: int = 4, units: int = 512
) -> tuple[list, list]:
    """(last three snapshots at Adam 1e-4, last three after ``slow`` more updates at 1e-6).

    Double Q, 3-step returns, windows of 20 rows × 32 from the rollouts of ``run``.
    """
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    net = Recurrent(units)
    target = copy.deepcopy(net)
    adam = torch.optim.Adam(net.parameters(), lr=1e-4, eps=eps)
    obs = run.obs[:, :, [0, 2]].astype(np.float32)
    first = np.abs(np.diff(run.obs[:, :, 0], axis=0, append=0)) > 0.2  # a reset moved the cart
    fast, last = [], []
    for k in range(updates + slow):
        adam.param_groups[0]["lr"] = 1e-4 if k < updates else 1e-6
        t, e = rng.integers(0, len(obs) - 24, 32), rng.integers(0, ENVS, 32)
        rows = t[None] + np.arange(23)[:, None]
        x, a = torch.from_numpy(obs[rows, e]), torch.from_numpy(run.action[rows, e])
        end = torch.from_numpy(first[rows, e].astype(np.float32))
        q = net(x)
        with torch.no_grad():
            best = q.argmax(-1, keepdim=True)
            future = target(x).gather(-1, best)[..., 0]
            going = (1 - end[:-3]) * (1 - end[1:-2]) * (1 - end[2:-1])
            goal = 1 + 0.997 + 0.997**2 + 0.997**3 * going * future[3:]
        loss = (q[:-3].gather(-1, a[:-3, :, None])[..., 0] - goal).square().mean()
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 40.0)
        adam.step()
        if k % 100 == 99:
            target.load_state_dict(net.state_dict())
        (fast if k < updates else last).append(flat(list(net.parameters())))
        del fast[:-3]
    return fast, last[-3:]


def bfloat16(weights: np.ndarray) -> np.ndarray:
    """Rounded to bfloat16, as two-byte voids."""
    return torch.from_numpy(weights).bfloat16().view(torch.int16).numpy().view("V2")


def breakout(frames: int = 512, seed: int = 0) -> np.ndarray:
    """uint8 [frames, 84, 84]: a wall that loses bricks, a ball, a paddle; averaged down by two."""
    rng = np.random.default_rng(seed)
    out = np.empty((frames, 84, 84), np.uint8)
    wall = rng.random((6, 18)) < 0.8
    tones = np.array([110, 127, 134, 139, 148, 160], np.float32)
    ball, speed, paddle = np.array([80.0, 60.0]), np.array([2.3, 1.7]), 80.0
    for k in range(frames):
        ball += speed
        speed = np.where((ball < (30, 10)) | (ball > (150, 154)), -speed, speed)
        ball = ball.clip((30, 10), (150, 154))
        brick = int((ball[0] - 46) // 6), int((ball[1] - 10) // 8.2)
        if 0 <= brick[0] < 6 and 0 <= brick[1] < 18 and wall[brick]:
            wall[brick], speed[0] = False, -speed[0]
        paddle += np.clip(ball[1] - paddle, -4, 4) + rng.integers(-1, 2)
        big = np.zeros((168, 168), np.float32)
        big[16:28] = big[28:, :8] = big[28:, -8:] = 142
        bricks = np.repeat(np.repeat(wall * tones[:, None], 6, 0), 8, 1)
        big[46:82, 12:156] = bricks
        left = int(np.clip(paddle, 12, 140))
        big[152:156, left : left + 16] = 200
        big[int(ball[0]) : int(ball[0]) + 4, int(ball[1]) : int(ball[1]) + 2] = 200
        big[4:12, 40 : 52 + 8 * (k // 200)] = 142
        out[k] = big.reshape(84, 2, 84, 2).mean((1, 3))
    return out
