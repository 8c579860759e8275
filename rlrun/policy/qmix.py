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
from rlrun.functional.rows import network_inputs, rows, shape_reward
from rlrun.functional.value import (
    QLoss,
    gather_bootstrap,
    mixed_priority,
    sequence_loss,
    take_action,
    td_target,
)
from rlrun.nets.burn_in import burn_in
from rlrun.nets.team import TeamNet, make_team_net
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.optim.step import GradientStep
from rlrun.policy.base.value_based import ValueBasedPolicy
from rlrun.schema import MemoryConfig, QMIXConfig, TorsoConfig
from rlrun.types import Segment, Spec, Tree, tree_map


class QMIX(ValueBasedPolicy[QMIXConfig, TeamNet]):
    """Acts epsilon-greedily agent by agent; learns the team's value from windows of joint rows."""

    def __init__(
        self,
        config: QMIXConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = DEFAULT_COMPUTE,
    ) -> None:
        self.window = config.window
        net = make_team_net(config, torso, memory, spec, seed=seed).to(device)
        super().__init__(
            config, net, seed=seed, total_steps=total_steps, device=device, compute=compute
        )
        self.step = GradientStep(self.online_target, self.loss, device, compute)

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

    def loss(self, segment: Segment, weight: Tensor) -> QLoss:
        """Loss, eta-mixed priorities and metrics of windows of joint rows.

        y = R_t + gamma^k Q_tot-(argmax_a Q_i(obs[t+k])), delta = y - Q_tot(actions taken).
        ``QLoss.q`` is Q_tot [L, B]. Source: Rashid et al. 2018, eq. 6.
        """
        c, bs, learned = self.config, self.window.burnin, self.window.learned
        state = segment.state
        if c.state_init == "zero":
            state = self.initial_state(segment.reward.shape[1])
        obs, *previous = network_inputs(segment, scale=c.reward_scale, clip=c.reward_clip)
        inputs = self.inputs(obs, *previous)
        q_values_no_grad = torch.no_grad()(self.q_values)
        q_target_of = self.compute.run_in_thread(
            lambda: q_values_no_grad(self.target, inputs, segment, state)
        )
        q = self.q_values(self.net, inputs, segment, state)
        q_target = q_target_of()

        ends = rows((segment.terminated, segment.truncated, segment.valid), bs, None)
        reward = shape_reward(segment.reward[bs:], c.reward_scale, c.reward_clip)
        n = nstep_return(reward, *ends, nstep=c.nstep, gamma=c.gamma)
        seen = rows(obs, bs, None)
        with torch.no_grad():
            best = team_greedy(q if c.double else q_target, self.net.allowed_actions(seen))
            next_value = self.target.q_total(take_action(q_target, best), seen)
        bootstrap = gather_bootstrap(next_value, n.steps[:learned])
        target = td_target(
            n.reward[:learned], n.discount[:learned], bootstrap, rescale_eps=c.value_rescale_eps
        )
        valid = ends[2][:learned]
        action = torch.where(valid.unsqueeze(-1), segment.action[bs : bs + learned], 0)
        q_selected = self.net.q_total(take_action(q[:learned], action), rows(seen, 0, learned))
        loss, td, grad = sequence_loss(q_selected, target, valid, weight, td_clip=c.td_clip)
        count = valid.sum().clamp(min=1)
        metrics = {
            "train/loss": loss,
            "train/td_abs": td.sum() / count,
            "train/q_taken": torch.where(valid, q_selected.detach(), 0.0).sum() / count,
            "train/target": torch.where(valid, target, 0.0).sum() / count,
            "train/valid_fraction": valid.float().mean(),
        }
        return QLoss(loss, mixed_priority(td, valid, c.eta), metrics, q_selected, grad)

    def inputs(self, obs: Tree, prev_action: Tensor, prev_reward: Tensor) -> tuple[Tree, Tensor]:
        """(observations of agents [T, B N, ...], previous action and reward) of every position."""
        reward = prev_reward.unsqueeze(-1).expand(prev_action.shape)
        previous = self.net.agents.encode_previous(prev_action, reward)
        seen = tree_map(lambda x: x.flatten(1, 2), self.net.agent_inputs(obs))
        return seen, previous.flatten(1, 2)

    def q_values(
        self, net: TeamNet, inputs: tuple[Tree, Tensor], segment: Segment, state: Tree
    ) -> Tensor:
        """Q_i [L + n, B, N, A] of one unroll after the burn-in, which has no gradient.

        ``state`` [B, N, H] is the one before each window's first own row.
        """
        bs, agents = self.window.burnin, net.agents
        state = tree_map(lambda s: s.flatten(0, 1), state)
        with self.compute.autocast(self.device):
            if bs:
                with torch.no_grad():
                    own = segment.valid[:bs].repeat_interleave(net.num_agents, 1)
                    x = agents.inputs(*rows(inputs, 0, bs))
                    state = burn_in(agents, x, state, own, segment.partial)
            q: Tensor = agents.unroll(agents.inputs(*rows(inputs, bs, None)), state)[0]
        return q.float().reshape(len(q), -1, net.num_agents, q.shape[-1])
