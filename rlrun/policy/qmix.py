"""QMIX and VDN: a team value learned from joint rows; every agent acts on its own values.

Rashid et al., "QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement
Learning", ICML 2018; Sunehag et al., "Value-Decomposition Networks", AAMAS 2018. Agents share one
recurrent Q-network; windows, burn-in, stored states and n-step targets are those of R2D2.
"""

import torch
from torch import Tensor

from rlrun.acting.team import TeamActor
from rlrun.functional.mixing import team_greedy
from rlrun.functional.returns import nstep_return
from rlrun.functional.rows import (
    network_inputs,
    readable,
    rows,
    shape_reward,
    weighted_row_mean,
)
from rlrun.functional.value import (
    ScalarCriterion,
    gather_bootstrap,
    mixed_priority,
    take_action,
    td_metrics,
)
from rlrun.nets.memory.burn_in import burn_in
from rlrun.nets.team import TeamNet, make_team_net
from rlrun.policy.base.network_health import UnitActivity
from rlrun.policy.base.value_based import ValueBasedPolicy
from rlrun.schema import MemoryConfig, QMIXConfig, TorsoConfig
from rlrun.types import Loss, Segment, Spec, Tree, tree_map


class QMIX(ValueBasedPolicy[QMIXConfig, TeamNet]):
    """Acts epsilon-greedily agent by agent; learns the team's value from windows of joint rows."""

    config_class = QMIXConfig  # a subclass inherits its keys

    def make_net(self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, seed: int) -> TeamNet:
        return make_team_net(self.config, torso, memory, spec, seed=seed)

    def set_up(self, spec: Spec, seed: int) -> None:
        self.criterion = ScalarCriterion(self.config)

    # -- acting ----------------------------------------------------------------------------------

    def initial_state(self, batch: int) -> Tree:
        """The recurrent state before an episode's first row, [batch, N, H] each."""
        size = self.net.num_agents
        state = self.net.agents.memory.initial_state(batch * size, self.device)
        return tree_map(lambda s: s.unflatten(0, (batch, size)), state)

    def actor(self, num_envs: int) -> TeamActor:
        """Epsilon-greedy on every agent's Q."""
        return TeamActor(self.net, self.config, self.generator, num_envs=num_envs)

    # -- learning --------------------------------------------------------------------------------

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Loss, eta-mixed priorities and metrics of windows of joint rows.

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
        priority = mixed_priority(row.priority, valid, c.eta)
        metrics = td_metrics(loss, row.td, row.prediction, row.target, valid)
        return Loss(loss, priority, metrics, row.td, row.prediction)

    def start_state(self, segment: Segment) -> Tree:
        """The state [B, N, H] that windows start from: stored with them, or zeros."""
        zero = self.config.state_init == "zero"
        return self.initial_state(segment.reward.shape[1]) if zero else segment.state

    def inputs(self, obs: Tree, prev_action: Tensor, prev_reward: Tensor) -> tuple[Tree, Tensor]:
        """(observations of agents [T, B N, ...], previous action and reward) of every position."""
        reward = prev_reward.unsqueeze(-1).expand(prev_action.shape)
        previous = self.net.agents.encode_previous(prev_action, reward)
        seen = tree_map(lambda x: x.flatten(1, 2), self.net.agent_inputs(obs))
        return seen, previous.flatten(1, 2)

    def unroll(
        self, net: TeamNet, inputs: tuple[Tree, Tensor], segment: Segment, state: Tree
    ) -> Tensor:
        """Q_i [L + n, B, N, A] of one unroll after the burn-in, which has no gradient.

        ``state`` [B, N, H] is the one before each window's first own row.
        """
        agents = net.agents
        with self.autocast():
            state = self.warm_state(net, inputs, segment, state)
            learned = rows(inputs, self.window.burnin, None)
            q: Tensor = agents.unroll(agents.inputs(*learned), state)[0]
        return q.float().reshape(len(q), -1, net.num_agents, q.shape[-1])

    @torch.no_grad()
    def warm_state(
        self, net: TeamNet, inputs: tuple[Tree, Tensor], segment: Segment, state: Tree
    ) -> Tree:
        """The state [B N, H] after the burn-in, from ``state`` [B, N, H]."""
        bs, agents = self.window.burnin, net.agents
        state = tree_map(lambda s: s.flatten(0, 1), state)
        if not bs:
            return state
        own = segment.valid[:bs].repeat_interleave(net.num_agents, 1)
        return burn_in(agents, agents.inputs(*rows(inputs, 0, bs)), state, own, segment.partial)

    @torch.no_grad()
    def unroll_target(self, inputs: tuple[Tree, Tensor], segment: Segment, state: Tree) -> Tensor:
        """``unroll`` of the target network, without a gradient in any thread."""
        return self.unroll(self.target, inputs, segment, state)

    def dead_units(self, windows: Segment) -> Tensor | None:
        """As ``ValueBasedPolicy.dead_units``; agents that have left the episode are left out."""
        c, net, bs = self.config, self.net, self.window.burnin
        obs, *previous = network_inputs(windows, scale=c.reward_scale, clip=c.reward_clip)
        inputs, seen = self.inputs(obs, *previous), rows(obs, bs, None)
        read = readable(windows.valid, windows.terminated)[bs:]
        with self.autocast():
            state = self.warm_state(net, inputs, windows, self.start_state(windows))
            with UnitActivity(net, positions=read.unsqueeze(-1) & (seen["alive"] > 0)) as units:
                net.agents.unroll(net.agents.inputs(*rows(inputs, bs, None)), state)
                units.positions = read
                net.mixer(torch.zeros_like(seen["alive"], dtype=torch.float32), seen["state"])
        return units.dead()
