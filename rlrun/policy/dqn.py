"""DQN and its extensions; each extension is a switch.

Mnih et al. 2015; van Hasselt et al. 2016 (double); Wang et al. 2016 (dueling); C51, QR-DQN and IQN
(``distribution``, functional/criterion.py); Fortunato et al. 2018 (noisy); Vieillard et al. 2020
(Munchausen); Pohlen et al. 2018 (value rescaling); Hessel et al. 2018 (Rainbow: double, dueling,
C51, noisy, n-step, prioritized); Munos et al. 2016 (``trace``, functional/q_traces.py). A window is
one learned row and the n rows after it.
"""

import torch
from torch import Tensor

from rlrun.acting.values import ValueActor
from rlrun.functional.criterion import make_criterion, make_munchausen
from rlrun.functional.masks import allowed_actions, has_mask
from rlrun.functional.q_traces import TraceTarget, make_trace_target
from rlrun.functional.rows import network_inputs, readable, shape_reward, weighted_row_mean
from rlrun.functional.transition import Transition, transition
from rlrun.functional.value import greedy, td_metrics
from rlrun.nets.forward_noise import ForwardNoise, UpdateForwardNoise, make_noise_generator
from rlrun.nets.qnet import QNet, make_qnet
from rlrun.policy.base.network_health import UnitActivity
from rlrun.policy.base.value_based import ValueBasedPolicy
from rlrun.schema import DQNConfig, MemoryConfig, TorsoConfig
from rlrun.types import Loss, Segment, Spec, Tree, tree_map


class DQN(ValueBasedPolicy[DQNConfig, QNet]):
    """Acts epsilon-greedily with a feed-forward Q-network and learns from single rows."""

    config_class = DQNConfig  # a subclass inherits its keys

    def make_net(self, torso: TorsoConfig, memory: MemoryConfig, spec: Spec, seed: int) -> QNet:
        return make_qnet(self.config, torso, memory, spec, seed=seed)

    def set_up(self, spec: Spec, seed: int) -> None:
        self.criterion = make_criterion(self.config, self.device)
        self.munchausen = make_munchausen(self.config, self.criterion)
        self.trace = make_trace_target(self.config)
        self.noise_generator = make_noise_generator(self.net, self.config, seed=seed)
        self.masked = has_mask(spec.obs)

    def actor(self, num_envs: int) -> ValueActor:
        """Epsilon-greedy on Q."""
        return ValueActor(self.net, self.config, self.generator, num_envs=num_envs)

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Squared TD error of row 0 of every window, or the distribution's loss."""
        c, criterion = self.config, self.criterion
        noise = self.noise(len(weight))
        reward = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        if self.munchausen is not None:
            reward = reward + self.munchausen_reward(segment, noise.target)
        shaping = (c.reward_scale, c.reward_clip) if c.prev_inputs else None
        t = transition(segment, reward, nstep=c.nstep, gamma=c.gamma, prev_inputs=shaping)
        if self.trace is None:
            y = self.nstep_target(t, noise)
        else:
            y = self.trace_target(self.trace, segment, reward, noise)

        # loss = mean_b w_b (y - Q(s, a; theta))^2 / 2, beyond td_clip its tangent (Huber)
        q = self.q_values(self.net, (t.obs, t.previous), noise.online)
        row = criterion.loss(criterion.select(q, t.action), y, t.valid, noise.online.taus)
        loss = weighted_row_mean(row.loss, t.valid, weight)
        metrics = td_metrics(loss, row.td, row.prediction, row.target, t.valid)
        return Loss(loss, row.priority, metrics, row.td, row.prediction)

    @torch.no_grad()
    def nstep_target(self, t: Transition, noise: UpdateForwardNoise) -> Tensor:
        """y = h(R + gamma^k h^-1(Q(s', a*; theta-))) [B], k <= n steps later; or a distribution.

        h: ``value_rescale_eps``. a* = argmax_a Q(s', a; theta), without ``double`` of theta-.
        """
        c, criterion, next_inputs = self.config, self.criterion, (t.next_obs, t.next_previous)
        q_target = self.q_values(self.target, next_inputs, noise.target)
        mask = allowed_actions(t.next_obs) if self.masked else None
        if self.munchausen is None:
            q_choice = q_target
            if c.double:
                q_choice = self.q_values(self.net, next_inputs, noise.choice)
            bootstrap = criterion.select(q_target, greedy(criterion.mean(q_choice), mask))
        else:
            bootstrap = self.munchausen.value(q_target, mask)
        return criterion.target(t.reward, t.discount, bootstrap)

    @torch.no_grad()
    def trace_target(
        self, trace: TraceTarget, segment: Segment, reward: Tensor, noise: UpdateForwardNoise
    ) -> Tensor:
        """y [B] of row 0, whose trace runs over the n rows of its window."""
        c = self.config
        obs, *previous = network_inputs(segment, scale=c.reward_scale, clip=c.reward_clip)
        inputs = obs, (previous[0], previous[1])
        q_target = self.q_values(self.target, inputs, noise.target)
        q_choice = self.q_values(self.net, inputs, noise.choice) if c.double else q_target
        mask = allowed_actions(obs) if self.masked else None
        return trace(q_choice, q_target, segment, reward, mask)[0]

    def q_values(
        self, net: QNet, inputs: tuple[Tree, tuple[Tensor, Tensor]], noise: ForwardNoise
    ) -> Tensor:
        """Q [*, A] of (obs, previous action and reward), [*, A, N] of a distribution."""
        obs, previous = inputs  # ``previous`` is empty without prev_inputs
        with self.autocast():
            return net.outputs(net.inputs(obs, net.encode_previous(*previous)), noise).float()

    def dead_units(self, windows: Segment) -> Tensor | None:
        c, read = self.config, readable(windows.valid, windows.terminated)
        obs, *previous = network_inputs(windows, scale=c.reward_scale, clip=c.reward_clip)
        noise = self.noise(*read.shape).online
        with UnitActivity(self.net, positions=read) as units:
            self.q_values(self.net, (obs, (previous[0], previous[1])), noise)
        return units.dead()

    @torch.no_grad()
    def munchausen_reward(self, segment: Segment, noise: ForwardNoise) -> Tensor:
        """scale clip(temperature log pi(a)) [T, B] of the target network; not used in padding."""
        assert self.munchausen is not None
        c = self.config
        obs, *previous = network_inputs(segment, scale=c.reward_scale, clip=c.reward_clip)
        obs, action_reward = tree_map(lambda x: x[:-1], (obs, tuple(previous)))
        q = self.q_values(self.target, (obs, action_reward), ForwardNoise(noise.layers))
        mask = allowed_actions(obs) if self.masked else None
        action = torch.where(segment.valid, segment.action, 0)
        return self.munchausen.reward(q, action, mask)
