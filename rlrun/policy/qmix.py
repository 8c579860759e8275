"""QMIX and VDN: a team value learned from joint rows. Every agent acts on its own values.

Rashid et al., "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement
Learning", ICML 2018; Sunehag et al., "Value-Decomposition Networks", AAMAS 2018. Agents share one
recurrent Q-network. Windows, burn-in, stored states and n-step targets are those of R2D2.
"""

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.explore import team_epsilon_greedy
from rlrun.functional.masks import MASK, has_mask, unmasked
from rlrun.functional.returns import nstep_return
from rlrun.functional.rows import network_inputs, readable, rows, shape_reward, weighted_row_mean
from rlrun.functional.value import (
    gather_bootstrap,
    mask_left_agents,
    mixed_priority,
    qmix_total,
    take_action,
    td_metrics,
    team_greedy,
    vdn_total,
)
from rlrun.nets.noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import flat_size, make_flatten, mlp
from rlrun.policy.actor import Chosen, NetActor
from rlrun.policy.health import UnitActivity
from rlrun.policy.numpy_net import Outputs
from rlrun.policy.r2d2 import SequenceLearner
from rlrun.schema import MemoryConfig, QMIXConfig, TorsoConfig
from rlrun.spaces import JointSpace
from rlrun.types import Loss, Segment, Spec, Tree, tree_map


class VDNMixer(nn.Module):
    """VDN: the sum of the agents' values. It has no parameters and does not use the state.

    Source: Sunehag et al. 2018.
    """

    def forward(self, q: Tensor, state: Tree) -> Tensor:
        """Mix q [*, N] to [*]."""
        return vdn_total(q)


class QMixer(nn.Module):
    """QMIX: a network with one hidden layer whose weights are functions of the state.

    Source: Rashid et al. 2018, section 4 (hypernetworks of one linear layer, two layers with a ReLU
    for the last bias); Rashid et al. 2020, appendix (``hyper_hidden`` for the weights'
    hypernetworks).
    """

    def __init__(self, config: QMIXConfig, state: gym.Space[object], num_agents: int) -> None:
        super().__init__()
        self.flatten, self.hidden = make_flatten(state), config.mixer_hidden
        size, hidden = flat_size(state), config.mixer_hidden
        hyper = [size, *config.hyper_hidden]
        self.w1 = mlp([*hyper, num_agents * hidden], "relu", last=False)
        self.b1 = mlp([size, hidden], "relu", last=False)
        self.w2 = mlp([*hyper, hidden], "relu", last=False)
        self.b2 = mlp([size, hidden, 1], "relu", last=False)

    def forward(self, q: Tensor, state: Tree) -> Tensor:
        """Mix q [*, N] to [*]."""
        s = self.flatten(state)
        w1 = self.w1(s).unflatten(-1, (q.shape[-1], self.hidden))
        return qmix_total(q, w1, self.b1(s), self.w2(s), self.b2(s).squeeze(-1))


class TeamNet(nn.Module):
    """Q_i of N agents with shared parameters, and the team's Q_tot.

    ``agents`` reads the agents as a batch: [T, B, N, ...] as [T, B N, ...].
    """

    available: Tensor

    def __init__(
        self, policy: QMIXConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
    ) -> None:
        super().__init__()
        space, action = spec.obs, spec.action
        assert isinstance(space, JointSpace), "checked in rlrun.config"
        assert isinstance(action, gym.spaces.MultiDiscrete), "checked in rlrun.config"
        self.num_agents, self.agent_id = space.num_agents, policy.agent_id
        self.masked = has_mask(space.agent)
        agent_space = unmasked(space.agent)  # action selection reads the mask, networks do not
        agent_id = gym.spaces.Box(0, 1, (self.num_agents,), np.float32)
        if self.agent_id:
            agent_space = gym.spaces.Dict({"agent": agent_id, "observation": agent_space})
        actions = gym.spaces.Discrete(int(action.nvec.max()))
        self.agents = QNet(policy, torso, memory, Spec(agent_space, actions))
        self.mixer: VDNMixer | QMixer = VDNMixer()
        if policy.mixer != "sum":
            self.mixer = QMixer(policy, space["state"], self.num_agents)
        available = np.arange(actions.n) < action.nvec[:, None]  # agents may have fewer actions
        self.register_buffer("available", torch.from_numpy(available), persistent=False)

    def agent_inputs(self, obs: Tree) -> Tree:
        """Return the inputs [*, N, ...] of ``agents`` from joint observations [*, N, *O]."""
        agent_obs = obs["agents"]
        if not self.agent_id:
            return agent_obs
        lead = obs["alive"].shape
        one_hot = torch.eye(self.num_agents, device=obs["alive"].device)
        return {"agent": one_hot.expand(*lead, self.num_agents), "observation": agent_obs}

    def allowed_actions(self, obs: Tree) -> Tensor:
        """Return bool [*, N, A]: the actions that each agent's mask allows; if none, all."""
        available = self.available.expand(*obs["alive"].shape, -1)
        if not self.masked:
            return available
        allowed = available & (obs["agents"][MASK] > 0)
        return torch.where(allowed.any(-1, keepdim=True), allowed, available)

    def q_total(self, q: Tensor, obs: Tree) -> Tensor:
        """Return Q_tot [*] of the agents' values [*, N] in joint observations."""
        value: Tensor = self.mixer(mask_left_agents(q, obs["alive"] > 0), obs["state"])
        return value


class TeamActor(NetActor):
    """Selects epsilon-greedy actions of every agent from its own observations."""

    def __init__(
        self, net: TeamNet, config: QMIXConfig, generator: np.random.Generator, *, num_envs: int
    ) -> None:
        agents = num_envs * net.num_agents
        super().__init__(net.agents, config, generator, num_envs=agents)
        self.num_envs, self.num_agents, self.masked = num_envs, net.num_agents, net.masked
        self.available = net.available.numpy(force=True)
        eye = np.eye(net.num_agents, dtype=np.float32)
        self.agent_id = np.tile(eye, (num_envs, 1)) if net.agent_id else None

    def initial_state(self) -> Tree:
        """Return the state [E, N, ...] before an episode's first row."""
        return self._per_team(super().initial_state())

    def step(
        self, obs: Tree, first: np.ndarray, action: np.ndarray, reward: np.ndarray, state: Tree
    ) -> Outputs:
        """Return action values [E, N, A] and the next state [E, N, ...]; ``action`` [E, N]."""
        agent_obs = tree_map(self._per_agent, obs["agents"])
        if self.agent_id is not None:
            agent_obs = {"agent": self.agent_id, "observation": agent_obs}
        first, reward = (np.repeat(x, self.num_agents) for x in (first, reward))
        state = tree_map(self._per_agent, state)
        q, state = super().step(agent_obs, first, self._per_agent(action), reward, state)
        return self._per_team(q), self._per_team(state)

    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        allowed = np.broadcast_to(self.available, outputs.shape)
        if self.masked:
            unmasked = allowed & (obs["agents"][MASK] > 0)
            allowed = np.where(unmasked.any(-1, keepdims=True), unmasked, allowed)
        return team_epsilon_greedy(outputs, allowed, explore, self.generator), {}

    def read(self, outputs: np.ndarray, obs: Tree) -> tuple[str, np.ndarray]:
        return "Q", outputs[0, 0]

    def _per_agent(self, x: np.ndarray) -> np.ndarray:
        """Reshape [E, N, ...] to [E N, ...]."""
        return x.reshape(self.num_envs * self.num_agents, *x.shape[2:])

    def _per_team(self, tree: Tree) -> Any:
        """Reshape [E N, ...] to [E, N, ...]."""
        return tree_map(lambda x: x.reshape(self.num_envs, self.num_agents, *x.shape[1:]), tree)


class QMIX(SequenceLearner[QMIXConfig]):
    """Acts epsilon-greedily per agent and learns the team's value from windows of joint rows."""

    config_class = QMIXConfig  # subclasses inherit its keys
    actor_class = TeamActor
    net: TeamNet  # type: ignore[assignment]

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        self.net = TeamNet(self.config, torso, memory, self.spec).to(self.device)
        self.set_up(self.net)

    def initial_state(self, batch: int) -> Tree:
        """Return the recurrent state before an episode's first row, [batch, N, H] each."""
        size = self.net.num_agents
        state = self.net.agents.memory.initial_state(batch * size, self.device)
        return tree_map(lambda s: s.unflatten(0, (batch, size)), state)

    # -- learning --------------------------------------------------------------------------------

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Return loss, eta-mixed priorities and metrics of windows of joint rows.

        y = R_t + gamma^k Q_tot(argmax_a Q_i(obs[t+k]); theta-), delta = y - Q_tot(actions taken).
        Source: Rashid et al. 2018, eq. 6.
        """
        c, bs, learned = self.config, self.window.burnin, self.window.learned
        state = self.start_state(segment)
        obs, *previous = network_inputs(segment, scale=c.reward_scale, clip=c.reward_clip)
        inputs = self.inputs(obs, *previous)
        target_unroll = self.compute.run_in_thread(
            lambda: self.unroll_target(inputs, segment, state)
        )
        q = self.unroll(self.net, inputs, segment, state)
        q_target = target_unroll()

        ends = rows((segment.terminated, segment.truncated, segment.valid), bs, None)
        reward = shape_reward(segment.reward[bs:], c.reward_scale, c.reward_clip)
        n = nstep_return(reward, *ends, nstep=c.nstep, gamma=c.gamma)
        seen = rows(obs, bs, None)
        with torch.no_grad():
            best = team_greedy(q if c.double else q_target, self.net.allowed_actions(seen))
            next_value = self.target.q_total(take_action(q_target, best), seen)
        bootstrap = gather_bootstrap(next_value, n.steps[:learned])
        y = self.criterion.target(n.reward[:learned], n.discount[:learned], bootstrap)

        valid = ends[2][:learned]
        action = torch.where(valid.unsqueeze(-1), segment.action[bs : bs + learned], 0)
        q_total = self.net.q_total(take_action(q[:learned], action), rows(seen, 0, learned))
        row = self.criterion.loss(q_total, y, valid, None)
        loss = weighted_row_mean(row.loss, valid, weight)
        priority = mixed_priority(row.priority, valid, c.priority_eta)
        metrics = td_metrics(loss, row.td, row.prediction, row.target, valid)
        return Loss(loss, priority, metrics, row.td, row.prediction)

    def inputs(self, obs: Tree, prev_action: Tensor, prev_reward: Tensor) -> tuple[Tree, Tensor]:
        """Return (observations of agents [T, B N, ...], previous action and reward)."""
        reward = prev_reward.unsqueeze(-1).expand(prev_action.shape)
        previous = self.net.agents.encode_previous(prev_action, reward)
        seen = tree_map(lambda x: x.flatten(1, 2), self.net.agent_inputs(obs))
        return seen, previous.flatten(1, 2)

    def unroll(  # type: ignore[override]
        self, net: TeamNet, inputs: tuple[Tree, Tensor], segment: Segment, state: Tree,
        noise: ForwardNoise = MEAN_WEIGHTS,
    ) -> Tensor:  # fmt: skip
        """Return Q_i [L + n, B, N, A] after the burn-in, which has no gradient.

        ``state`` [B, N, H] is the one before each window's first row that is not filler.
        """
        q = super().unroll(net.agents, inputs, self.per_agent(segment), flat(state))
        return q.reshape(len(q), -1, net.num_agents, q.shape[-1])

    def per_agent(self, segment: Segment) -> Segment:
        """Return ``segment`` with the flags ``valid`` of agents [T, B N]."""
        return replace(segment, valid=segment.valid.repeat_interleave(self.net.num_agents, 1))

    def dead_units(self, windows: Segment) -> Tensor | None:
        """Agents that have left the episode are left out."""
        c, net, bs = self.config, self.net, self.window.burnin
        obs, *previous = network_inputs(windows, scale=c.reward_scale, clip=c.reward_clip)
        inputs, seen = self.inputs(obs, *previous), rows(obs, bs, None)
        read = readable(windows.valid, windows.terminated)[bs:]
        with self.autocast():
            start = flat(self.start_state(windows))
            state = self.warm_state(net.agents, inputs, self.per_agent(windows), start)
            with UnitActivity(net, positions=read.unsqueeze(-1) & (seen["alive"] > 0)) as units:
                net.agents.unroll(net.agents.inputs(*rows(inputs, bs, None)), state)
                units.positions = read
                net.mixer(torch.zeros_like(seen["alive"], dtype=torch.float32), seen["state"])
        return units.dead()


def flat(state: Tree) -> Tree:
    """Reshape [B, N, ...] to [B N, ...]."""
    return tree_map(lambda s: s.flatten(0, 1), state)
