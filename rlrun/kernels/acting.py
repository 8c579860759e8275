"""Actions of networks without a memory for a row of E environments: one compiled call."""

import copy
import logging
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from rlrun.functional.explore import LOG_2PI, Temperature
from rlrun.jit import inner, jit_ieee
from rlrun.kernels.dqn import DQNKernel
from rlrun.kernels.layers import N_OUT, ZERO, F, action_values, forward, part
from rlrun.kernels.on_policy import ActorCriticKernel, CompiledLearner
from rlrun.nets.actor_critic import CLIP
from rlrun.spaces import image_scale
from rlrun.types import Act, Tree

CHECKED, MOST_DIFFERENT = 32, 0.05  # rows that are compared, share of actions that may differ
_logger = logging.getLogger(__name__)


@inner
@jit_ieee
def standardise(obs: Any, moments: Any, inputs: Any) -> None:
    """Write the network's ``inputs`` [E, F] for observations [E, F]."""
    mean, scale, most = moments
    for i in range(len(obs)):
        for j in range(obs.shape[1]):
            inputs[i, j] = min(max((obs[i, j] - mean[j]) * scale[j], -most), most)


@inner
@jit_ieee
def gaussian_actions(mean: Any, box: Any, noise: Any, raw: Any, out: Any, log_prob: Any) -> None:
    """Write ``functional.explore.draw_gaussian`` of ``mean`` [E, A], and actions in bounds."""
    log_std, middle, half_width, low, high = box
    constant = F(log_std.sum() + 0.5 * LOG_2PI * len(log_std))
    for i in range(len(mean)):
        total = ZERO
        for j in range(len(log_std)):
            total += noise[i, j] * noise[i, j]
            raw[i, j] = mean[i, j] + noise[i, j] * np.exp(log_std[j])
            out[i, j] = min(max(F(middle[j] + half_width[j] * raw[i, j]), low[j]), high[j])
        log_prob[i] = F(-0.5) * total - constant


@inner
@jit_ieee
def sample_actions(z: Any, draws: Any, action: Any, log_prob: Any, p: Any) -> None:
    """Write ``functional.explore.draw_categorical`` of the logits z [E, A]."""
    actions = len(p)
    for i in range(len(action)):
        most, total = z[i, 0], ZERO
        for j in range(1, actions):
            most = max(most, z[i, j])
        for j in range(actions):
            total += np.exp(z[i, j] - most)
            p[j] = total
        threshold = min(draws[i] * total, np.nextafter(total, ZERO))
        chosen = 0
        for j in range(actions - 1):
            chosen += p[j] <= threshold
        action[i], log_prob[i] = chosen, z[i, chosen] - most - np.log(total)


@inner
@jit_ieee
def greedy_actions(q: Any, epsilon: Any, coins: Any, others: Any, action: Any) -> None:
    """Write ``functional.explore.select_action`` of the values q [E, A]."""
    for i in range(len(action)):
        action[i] = others[i] if coins[i] < epsilon[i] else q[i].argmax()


@jit_ieee
def act(
    net: Any, draws: Any, greedy: Any, box: Any, obs: Any, action: Any, log_prob: Any
) -> None:  # fmt: skip
    """Write the actions of E environments from observations [E, F], and their log-probabilities.

    ``net``: layers, heads, parameters, work and moments, see ``rollouts.rollout``. ``draws``: of
    ``sample_actions``; ``greedy``: epsilon, coins and others of ``greedy_actions``; ``box``: the
    arguments of ``gaussian_actions`` between mean and actions. Two of the three are None.
    """
    layers, heads, p, (h, unit, inverse, _), moments = net
    columns, inputs = len(obs), np.empty(obs.shape, np.float32)
    standardise(obs, moments, inputs)
    forward(layers, p, inputs.reshape(-1), columns, h, unit, inverse)
    if draws is not None:
        logits = part(h, layers[heads[0]], columns)
        sample_actions(logits, draws, action, log_prob, np.empty(logits.shape[1], np.float32))
    if greedy is not None:
        epsilon, coins, others = greedy
        q = np.empty((columns, layers[heads[0], N_OUT]), np.float32)
        action_values(h, layers, heads, columns, q)
        greedy_actions(q, epsilon, coins, others, action)
    if box is not None:
        bounds, noise, raw = box
        mean = part(h, layers[heads[0]], columns)
        gaussian_actions(mean, bounds, noise, raw, action, log_prob)


class ActingNetwork:
    """The layers of a kernel's network that act, for a number of environments."""

    def __init__(self, kernel: CompiledLearner | DQNKernel, columns: int) -> None:
        net: Any = kernel.policy.net
        self.layers, self.heads, self.log_std = kernel.layers, kernel.heads, slice(0)
        self.statistics, self.bounds = getattr(net, "moments", None), net.bounds
        self.samples = isinstance(kernel, ActorCriticKernel)
        if isinstance(kernel, ActorCriticKernel):  # the value is computed with the update
            self.layers, self.heads = kernel.layers[: kernel.heads[0] + 1], (kernel.heads[0], -1)
            self.log_std = kernel.log_std_place
        self.values, self.work = kernel.net.values, kernel.net.work(columns)
        self.no_moments = np.zeros(kernel.net.inputs), np.ones(kernel.net.inputs), np.inf

    def arguments(self) -> tuple[Any, ...]:
        """Return layers, heads, parameters, work and moments; see ``rollouts.rollout``."""
        moments = self.no_moments
        if (statistics := self.statistics) is not None:
            mean, scale = statistics.center().numpy(), statistics.inverse_std().numpy()
            moments = mean.reshape(-1), scale.reshape(-1), CLIP
        return self.layers, self.heads, self.values, self.work, moments

    def box(self) -> tuple[Any, ...] | None:
        """Return log standard deviations, middle, half width, lowest and highest actions [A]."""
        if (bounds := self.bounds) is None:
            return None
        low, high = bounds.space.low.reshape(-1), bounds.space.high.reshape(-1)
        return self.values[self.log_std], bounds.middle, bounds.half_width, low, high


class CompiledActor:
    """Acts like ``actor``, with its random numbers, up to the rounding of the network's outputs."""

    def __init__(self, kernel: CompiledLearner | DQNKernel, actor: Any, columns: int) -> None:
        self.actor, self.columns, self.extras = actor, columns, actor.extras
        self.network, self.learned = ActingNetwork(kernel, columns), kernel.net.values
        self.network.values = self.learned.copy()
        self.sizes = kernel.policy.net.sizes
        self.compared, self.agrees = False, True
        self.refresh()

    @classmethod
    def of(cls, collector: Any) -> "CompiledActor | None":
        """Return the compiled actor of a ``Collector``, or None if it needs the actor itself."""
        kernel, env = collector.policy.kernel, collector.env
        if not isinstance(kernel, CompiledLearner | DQNKernel):
            return None
        trunks: Any = kernel.policy.net.acting_trunks()
        sizes, boltzmann = kernel.policy.net.sizes, isinstance(collector.explore(0), Temperature)
        if len(sizes or ()) > 1 or boltzmann or image_scale(trunks[0][0].space) != 1:
            return None
        spaces = (env.obs_space,) if sizes else (env.obs_space, env.action_space)
        if not all(isinstance(x, Box) and x.dtype == np.float32 for x in spaces):
            return None
        return cls(kernel, collector.actor, collector.num_envs)

    def refresh(self) -> None:
        if not (self.compared and self.agrees):
            self.actor.refresh()
        np.copyto(self.network.values, self.learned)
        self.arguments, self.box = self.network.arguments(), self.network.box()

    def initial_state(self) -> Tree:
        return self.actor.initial_state()

    def act(self, *row: Any, explore: np.ndarray | None) -> Act:
        assert explore is not None, "evaluations have their own actors"
        if not self.compared:
            self.compared, self.agrees = True, self._compare(row, explore)
        if self.agrees:
            return self._act(row, explore, self.actor.generator)
        act: Act = self.actor.act(*row, explore=explore)
        return act

    def _act(self, row: Any, epsilon: np.ndarray, generator: np.random.Generator) -> Act:
        obs, _, previous, _, state = row
        x, columns, net, extras = obs.reshape(len(obs), -1), self.columns, self.arguments, {}
        if self.network.samples:
            extras["log_prob"] = log_prob = np.empty(columns, np.float32)
        if self.box is not None:
            noise = generator.standard_normal((columns, len(self.box[0])), np.float32)
            raw, action = np.empty_like(noise), np.empty_like(noise)
            act(net, None, None, (self.box, noise, raw), x, action, log_prob)
            extras["raw_action"] = raw.reshape(previous.shape)
            return Act(action.reshape(previous.shape), extras, state)
        chosen = np.empty(columns, np.int64)
        if self.network.samples:
            act(net, generator.random(columns, np.float32), None, None, x, chosen, log_prob)
        else:
            coins = generator.random(columns)
            others = generator.integers(self.sizes[0], size=columns)
            act(net, None, (epsilon, coins, others), None, x, chosen, None)
        return Act(chosen.reshape(previous.shape), extras, state)

    def _compare(self, row: Any, explore: np.ndarray) -> bool:
        """Return whether actions are the actor's, for observations beside those of ``row``.

        Every second comparison is greedy where ``explore`` is epsilon.
        """
        actor, (obs, *past), different = self.actor, row, 0
        generator, random, columns = actor.generator, np.random.default_rng(0), self.columns
        try:
            for k in range(CHECKED):
                noised = obs + random.standard_normal(obs.shape, np.float32)
                seen, epsilon = (noised, *past), explore * (k % 2)
                actor.generator, other = copy.deepcopy(generator), copy.deepcopy(generator)
                want, out = actor.act(*seen, explore=epsilon), self._act(seen, epsilon, other)
                same = np.isclose(out.action, want.action, 1e-4, 1e-4, equal_nan=True)
                same = same.reshape(columns, -1).all(-1)
                different += int(np.count_nonzero(~same))
                near = 1e-3 + 1e-5 * np.abs(actor.outputs).max()
                if not (
                    out.extras.keys() == want.extras.keys()
                    and all(
                        np.isclose(x, want.extras[name], atol=near, equal_nan=True)[same].all()
                        for name, x in out.extras.items()
                    )
                    and other.bit_generator.state == actor.generator.bit_generator.state
                ):
                    different = CHECKED * columns
                    break
        finally:
            actor.generator = generator
        if different <= MOST_DIFFERENT * CHECKED * columns:
            return True
        _logger.warning(
            "collector: the compiled actions are not those of this policy; its actor is used"
        )
        return False
