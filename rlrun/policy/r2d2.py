"""R2D2: recurrent double Q-learning from prioritized replayed sequences.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019;
y, h and the priority are those of section 2.3. A window has these positions, all but the last with
an action and its outcome:

    [0, bs) burn-in      [bs, bs + L) learned      [bs + L, bs + L + n) read by targets only

Switches beyond the paper: ``trace`` (functional/q_traces.py), ``distribution``, ``noisy``,
``munchausen`` (papers: dqn.py). Traces run to the window's end, over n to L + n - 1 rows.
"""

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from rlrun.functional.masks import allowed_actions
from rlrun.functional.returns import nstep_return
from rlrun.functional.rows import masked_mean, readable, rows, shape_reward, weighted_row_mean
from rlrun.functional.value import gather_bootstrap, greedy, mixed_priority, td_metrics
from rlrun.nets.acting import burn_in
from rlrun.nets.noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.qnet import QNet
from rlrun.policy.dqn import QLearner
from rlrun.policy.health import UnitActivity
from rlrun.schema import R2D2Config, SequenceConfig
from rlrun.types import Loss, Segment, Tree

S = TypeVar("S", bound=SequenceConfig)


class SequenceLearner(QLearner[S], Generic[S]):
    """Base class of policies that unroll a Q-network over windows: R2D2 and QMIX."""

    def start_state(self, segment: Segment) -> Tree:
        """Return the state [B, H] from which windows start: the stored one, or zeros."""
        zero = self.config.state_init == "zero"
        return self.initial_state(segment.reward.shape[1]) if zero else segment.state

    def initial_state(self, batch: int) -> Tree:
        """Return the recurrent state before an episode's first row, [batch, H] each."""
        return self.net.memory.initial_state(batch, self.device)

    def unroll(
        self, net: QNet, inputs: tuple[Tree, Tensor], segment: Segment, state: Tree,
        noise: ForwardNoise = MEAN_WEIGHTS,
    ) -> Tensor:  # fmt: skip
        """Return Q [L + n, B, A], or a distribution [..., A, N], after a burn-in without gradient.

        ``state`` [B, H] is the one before each window's first row that is not filler. A window
        holds one episode, so no state is reset in it. Noisy heads select a* with the noise of the
        online pass, unlike DQN, which draws new noise.
        """
        with self.autocast():
            state = self.warm_state(net, inputs, segment, state)
            learned = rows(inputs, self.window.burnin, None)
            q: Tensor = net.unroll(net.inputs(*learned), state, noise)[0]
        return q.float()

    @torch.no_grad()
    def warm_state(
        self, net: QNet, inputs: tuple[Tree, Tensor], segment: Segment, state: Tree
    ) -> Tree:
        """Return the state [B, H] after the burn-in, which filler leaves unchanged."""
        bs = self.window.burnin
        if not bs:
            return state
        x = net.inputs(*rows(inputs, 0, bs))
        return burn_in(net.memory, x, state, segment.valid[:bs], segment.partial)

    @torch.no_grad()
    def unroll_target(
        self, inputs: tuple[Tree, Tensor], segment: Segment, state: Tree,
        noise: ForwardNoise = MEAN_WEIGHTS,
    ) -> Tensor:  # fmt: skip
        """Unroll the target network without gradients; gradient mode is a setting of the thread."""
        return self.unroll(self.target, inputs, segment, state, noise)


class R2D2(SequenceLearner[R2D2Config]):
    """Acts epsilon-greedily with a recurrent Q-network and learns from windows of rows."""

    config_class = R2D2Config  # subclasses inherit its keys

    def set_up(self, net: nn.Module) -> None:
        super().set_up(net)
        self.window_inputs = self.compute.compiled(self.net.window_inputs)
        self.compiled_loss = self.compute.compiled(self.td_loss)

    def loss(self, segment: Segment, weight: Tensor) -> Loss:
        """Return the squared TD error of the learned rows, and eta-mixed priorities."""
        bs = self.window.burnin
        with self.autocast():
            inputs = self.net.prepared(self.window_inputs(segment, self.config))
        state = self.start_state(segment)
        noise = self.noise(self.window.learned + self.window.nstep, len(weight))

        # Q(.; theta) and Q(.; theta-) of [bs, bs + L + n)
        target_unroll: Callable[[], Tensor]
        target_unroll = partial(self.unroll_target, inputs, segment, state, noise.target)
        if self.compute.target_thread:
            target_unroll = self.compute.run_in_thread(target_unroll)
        q = self.unroll(self.net, inputs, segment, state, noise.online)
        q_target = target_unroll()

        mask = allowed_actions(rows(inputs[0], bs, None)) if self.net.masked else None
        return self.compiled_loss(q, q_target, segment, weight, mask, noise.online.taus)

    def td_loss(
        self, q: Tensor, q_target: Tensor, segment: Segment, weight: Tensor, mask: Tensor | None,
        taus: Tensor | None,
    ) -> Loss:  # fmt: skip
        """Return the loss from the outputs [L + n, B, A, *] of both networks behind the burn-in.

        ``mask``: allowed actions, ``taus``: quantile levels of ``q``.
        """
        c, bs, learned = self.config, self.window.burnin, self.window.learned
        criterion = self.criterion

        # y_t = h(sum_{j<k} gamma^j r_{t+j} + gamma^k h^-1(Q(s_{t+k}, a*; theta-))), k <= n steps
        # a* = argmax_a Q(s_{t+k}, a; theta) (double),  h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x
        terminated, truncated = segment.terminated[bs:], segment.truncated[bs:]
        valid = segment.valid[bs:]
        action = torch.where(valid, segment.action[bs:], 0)
        reward = shape_reward(segment.reward[bs:], c.reward_scale, c.reward_clip)
        q_choice = q.detach() if c.double else q_target
        if self.trace is not None:  # in place of the n-step return: to the window's end
            y = self.trace(q_choice, q_target, segment, reward, mask, start=bs)[:learned]
        else:
            if self.munchausen is None:
                value = criterion.select(q_target, greedy(criterion.mean(q_choice), mask))
            else:  # Vieillard et al. 2020, eq. 1
                reward = reward + self.munchausen.reward(q_target, action, mask)
                value = self.munchausen.value(q_target, mask)
            n = nstep_return(reward, terminated, truncated, valid, nstep=c.nstep, gamma=c.gamma)
            bootstrap = gather_bootstrap(value, n.steps[:learned])
            y = criterion.target(n.reward[:learned], n.discount[:learned], bootstrap)

        # delta_t = y_t - Q(s_t, a_t; theta),  loss = mean_b w_b (1/L) sum_t delta_t^2 / 2 (Huber),
        # where padding adds 0 to the sum and counts in L
        valid = valid[:learned]
        prediction = criterion.select(q[:learned], action[:learned])
        row = criterion.loss(prediction, y, valid, None if taus is None else taus[:learned])
        loss = weighted_row_mean(row.loss, valid, weight)

        # p = eta max_t |delta_t| + (1 - eta) mean_t |delta_t|
        priority = mixed_priority(row.priority, valid, c.priority_eta)
        metrics = td_metrics(loss, row.td, row.prediction, row.target, valid)
        return Loss(loss, priority, metrics, row.td, row.prediction)

    def dead_units(self, windows: Segment) -> Tensor | None:
        bs, inputs = self.window.burnin, self.net.window_inputs(windows, self.config)
        read = readable(windows.valid, windows.terminated)[bs:]
        noise = self.noise(*read.shape).online
        with self.autocast():
            state = self.warm_state(self.net, inputs, windows, self.start_state(windows))
            with UnitActivity(self.net, positions=read) as units:
                self.net.unroll(self.net.inputs(*rows(inputs, bs, None)), state, noise)
        return units.dead()

    @torch.no_grad()
    def delta_q(self, windows: Segment, history: Segment) -> dict[str, Tensor]:
        """Return the error of Q at the first and last learned row for stored and zero states.

        The mean over windows of |q(h') - q(h)|_2 / |max_a q(h)|. h is the state that the present
        network reaches from the trajectory's start (``history``, the rows before each window). h'
        is the state after burn-in from the stored or the zero state. Source: R2D2 section 3, figure
        1, where h is the stored state of every row.
        """
        bs, last, net = self.window.burnin, self.window.learned - 1, self.net
        past, inputs = (net.window_inputs(x, self.config) for x in (history, windows))
        lengths = history.valid.sum(0)
        zero = self.initial_state(len(lengths))
        true = net.memory.state_after(net.inputs(*rows(past, 0, -1)), lengths, zero)

        def values(state: Tree) -> Tensor:
            return self.criterion.mean(self.unroll(net, inputs, windows, state))

        q = values(true)
        scale = q.amax((0, 2)).abs().clamp(min=1e-6)
        full = windows.valid[bs + last]
        if not full.any():
            return {}
        errors = {}
        for name, state in (("stored", windows.state), ("zero", zero)):
            gap = (values(state) - q).norm(dim=-1) / scale
            errors[f"train/delta_q_{name}_first"] = masked_mean(gap[0], full)
            errors[f"train/delta_q_{name}_last"] = masked_mean(gap[last], full)
        return errors
