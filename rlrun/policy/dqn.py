"""DQN and its extensions, each of which is a switch.

Mnih et al. 2015; van Hasselt et al. 2016 (double); Wang et al. 2016 (dueling); C51, QR-DQN and IQN
(``distribution``, functional/criterion.py); Fortunato et al. 2018 (noisy); Vieillard et al. 2020
(Munchausen); Pohlen et al. 2018 (value rescaling); Hessel et al. 2018 (Rainbow: double, dueling,
C51, noisy, n-step, prioritized); Munos et al. 2016 (``trace``, functional/q_traces.py). A window is
one learned row and the n rows after it.
"""

from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from rlrun.functional.criterion import CategoricalCriterion, Munchausen, QuantileCriterion
from rlrun.functional.explore import log_probability, select_action
from rlrun.functional.masks import allowed_actions, allowed_or_none
from rlrun.functional.q_traces import TraceTarget
from rlrun.functional.returns import Transition, transition
from rlrun.functional.rows import readable, rows, shape_reward, weighted_row_mean
from rlrun.functional.value import RowLoss, ScalarCriterion, greedy, td_metrics, unrescale
from rlrun.nets.noise import NO_NOISE, ForwardNoise, NoiseGenerator, UpdateForwardNoise
from rlrun.nets.qnet import QNet, make_qnet
from rlrun.policy.actor import Chosen, NetActor
from rlrun.policy.base import Metrics, TargetLearner
from rlrun.policy.health import UnitActivity
from rlrun.schema import DQNConfig, MemoryConfig, SwitchedConfig, TorsoConfig, ValueConfig
from rlrun.types import Loss, Sample, Segment, Tree

V = TypeVar("V", bound=ValueConfig)


# -- acting ----------------------------------------------------------------------------------------


class ValueActor(NetActor):
    """Greedy actions of a Q-network, replaced by uniform ones with probability epsilon.

    In noisy networks every environment has its own noise; greedy actions use the mean weights.
    ``policy.noisy_resample`` sets how long the noise is kept: ``step``, until the next action
    (Fortunato et al. 2018, section 3.1, for DQN), or ``chunk``, until the next ``refresh`` (the
    same section, for A3C's rollouts). With ``chunk`` an environment follows one perturbed policy
    for many steps and reaches states that independent noise per step does not.

    ``extras["log_prob"]``, present only if the policy reads it (``policy.trace=retrace``), belongs
    to the action under its exploration, given the noise.
    """

    exported = True
    net: QNet

    def set_up(self) -> None:
        config = self.config
        switches = config if isinstance(config, SwitchedConfig) else None
        self.noisy = switches is not None and switches.noisy is not None
        self.noise_per_chunk = switches is not None and switches.noisy_resample == "chunk"
        self.needs_noise = True  # the next exploring action draws noise in any case
        replay = config if isinstance(config, ValueConfig) else None
        # Of the outputs, None: they are Q.
        self.value_rescale_eps = None if replay is None else replay.value_rescale_eps
        if replay is not None and replay.records_log_prob:
            self.extras["log_prob"] = np.zeros(self.columns, np.float32)

    def refresh(self) -> None:
        self.copy.refresh()
        self.needs_noise = True

    def q_values(self, outputs: Tensor) -> Tensor:
        """Return Q from the network's outputs, with value rescaling undone."""
        eps = self.value_rescale_eps
        return outputs if eps is None else unrescale(outputs, eps)

    def perturb(self, explore: np.ndarray | None) -> None:
        if self.noisy and (explore is None or self.needs_noise or not self.noise_per_chunk):
            self.copy.perturb(None if explore is None else self.generator)
            self.needs_noise = explore is None

    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        mask = allowed_actions(obs) if self.net.masked else None
        action = select_action(outputs, explore, self.generator, mask)
        if not self.extras:
            return action, {}
        return action, {"log_prob": log_probability(outputs, action, explore, mask)}

    def greedy(self, outputs: Tensor, obs: Tree) -> dict[str, Tensor]:
        return {"action": greedy(outputs, allowed_or_none(obs)), "q_values": self.q_values(outputs)}

    def read(self, outputs: np.ndarray, obs: Tree) -> tuple[str, np.ndarray]:
        return "Q", self.q_values(torch.from_numpy(np.array(outputs[0]))).numpy()


# -- learning --------------------------------------------------------------------------------------


class QLearner(TargetLearner[V], Generic[V]):
    """Base class of policies with action values: DQN, R2D2, CQL and QMIX."""

    actor_class: ClassVar[type[NetActor]] = ValueActor
    net: QNet

    def build(self, torso: TorsoConfig, memory: MemoryConfig) -> None:
        self.net = make_qnet(self.config, torso, memory, self.spec).to(self.device)
        self.set_up(self.net)

    def set_up(self, net: nn.Module) -> None:
        """Add ``net`` with its target network, and the terms that the config adds to the loss."""
        part, c = self.add("net", net, follows=net), self.config
        assert part.target is not None
        self.target: Any = part.target
        self.criterion = ScalarCriterion(c)
        self.munchausen: Munchausen | None = None
        self.trace: TraceTarget | None = None
        self.noise_generator: NoiseGenerator | None = None
        if isinstance(c, SwitchedConfig):
            if c.distribution == "categorical":
                self.criterion = CategoricalCriterion(c, self.device)
            elif c.distribution != "none":
                self.criterion = QuantileCriterion(c, self.device)
            if c.munchausen is not None:
                self.munchausen = Munchausen(c, self.criterion)
            if c.trace != "nstep":
                self.trace = TraceTarget(c)
            if c.noisy is not None or c.distribution == "implicit":
                self.noise_generator = NoiseGenerator(net, c, seed=self.seed)

    def noise(self, *lead: int) -> UpdateForwardNoise:
        """Return the noise of this update's forward passes; quantile levels are [*lead, N]."""
        make = self.noise_generator
        return NO_NOISE if make is None else make(self.updates, *lead)

    @torch.no_grad()
    def inspect(self, sample: Sample) -> Loss:
        """Return the loss with |delta| and Q of every learned row. Learns nothing."""
        return self.loss(*sample.to(self.device))

    def finish_update(self, norms: Metrics, metrics: Metrics, env_steps: int) -> Metrics:
        self.update_targets("net")
        return {} if self.noise_generator is None else {**self.noise_generator.metrics()}

    def state_dict(self) -> dict[str, Any]:
        key = {} if self.noise_generator is None else {"noise_generator": self.noise_generator.key}
        return super().state_dict() | key

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.noise_generator is not None:
            self.noise_generator.key = state["noise_generator"]


class DQN(QLearner[V], Generic[V]):
    """Acts epsilon-greedily with a feed-forward Q-network and learns from single rows."""

    config_class: type[ValueConfig] = DQNConfig  # subclasses inherit its keys

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Return the squared TD error of row 0 of every window, or the distribution's loss."""
        t, _, row = self.td_rows(segment, weight)
        loss = weighted_row_mean(row.loss, t.valid, weight)
        metrics = td_metrics(loss, row.td, row.prediction, row.target, t.valid)
        return Loss(loss, row.priority, metrics, row.td, row.prediction)

    def td_rows(self, segment: Segment, weight: Tensor) -> tuple[Transition, Tensor, RowLoss]:
        """Return row 0 of every window, the network's outputs [B, A, *] and the loss [B]."""
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

        # (y - Q(s, a; theta))^2 / 2, beyond td_clip its tangent (Huber)
        inputs = t.obs, self.net.encode_previous(*t.previous)
        q = self.q_values(self.net, inputs, noise.online)
        prediction = criterion.select(q, t.action)
        return t, q, criterion.loss(prediction, y, t.valid, noise.online.taus)

    @torch.no_grad()
    def nstep_target(self, t: Transition, noise: UpdateForwardNoise) -> Tensor:
        """Return y = h(R + gamma^k h^-1(Q(s', a*; theta-))) [B], k <= n steps later, or a
        distribution.

        h is the value rescaling (``value_rescale_eps``). a* = argmax_a Q(s', a; theta) if
        ``double``, else argmax_a Q(s', a; theta-).
        """
        c, criterion = self.config, self.criterion
        next_inputs = t.next_obs, self.net.encode_previous(*t.next_previous)
        q_target = self.q_values(self.target, next_inputs, noise.target)
        mask = allowed_or_none(t.next_obs)
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
        """Return y [B] of row 0, with a trace over the n rows of its window."""
        c = self.config
        inputs = self.net.window_inputs(segment, c)
        q_target = self.q_values(self.target, inputs, noise.target)
        q_choice = self.q_values(self.net, inputs, noise.choice) if c.double else q_target
        return trace(q_choice, q_target, segment, reward, allowed_or_none(inputs[0]))[0]

    def q_values(self, net: QNet, inputs: tuple[Tree, Tensor], noise: ForwardNoise) -> Tensor:
        """Return Q [*, A], or a distribution [*, A, N], of (obs, encoded previous row)."""
        with self.autocast():
            return net.outputs(net.inputs(*inputs), noise).float()

    def dead_units(self, windows: Segment) -> Tensor | None:
        inputs = self.net.window_inputs(windows, self.config)
        read = readable(windows.valid, windows.terminated)
        noise = self.noise(*read.shape).online
        with UnitActivity(self.net, positions=read) as units:
            self.q_values(self.net, inputs, noise)
        return units.dead()

    @torch.no_grad()
    def munchausen_reward(self, segment: Segment, noise: ForwardNoise) -> Tensor:
        """Return scale clip(temperature log pi(a)) [T, B] of the target network."""
        assert self.munchausen is not None
        inputs = rows(self.net.window_inputs(segment, self.config), 0, -1)
        q = self.q_values(self.target, inputs, ForwardNoise(noise.layers))
        action = torch.where(segment.valid, segment.action, 0)
        return self.munchausen.reward(q, action, allowed_or_none(inputs[0]))
