"""R2D2: recurrent double Q-learning from prioritized replayed sequences.

Kapturowski et al., "Recurrent Experience Replay in Distributed Reinforcement Learning", ICLR 2019.
"""

import torch
from torch import Tensor

from rlrun.acting.values import ValueActor
from rlrun.functional.criterion import make_criterion, make_munchausen
from rlrun.functional.masks import allowed_actions, has_mask
from rlrun.functional.reduce import masked_mean
from rlrun.functional.returns import nstep_return
from rlrun.functional.rows import network_inputs, rows, shape_reward
from rlrun.functional.value import QLoss, gather_bootstrap, greedy, mixed_priority
from rlrun.nets.burn_in import burn_in
from rlrun.nets.forward_noise import MEAN_WEIGHTS, ForwardNoise, NoiseGenerator
from rlrun.nets.qnet import QNet, make_qnet
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.optim.step import GradientStep
from rlrun.policy.base.value_based import ValueBasedPolicy
from rlrun.schema import MemoryConfig, R2D2Config, TorsoConfig
from rlrun.types import Segment, Spec, Tree


class R2D2(ValueBasedPolicy[R2D2Config, QNet]):
    """Acts epsilon-greedily with a recurrent Q-network and learns from windows of rows."""

    noise_generator: NoiseGenerator

    def __init__(
        self,
        config: R2D2Config,
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
        net = make_qnet(config, torso, memory, spec, seed=seed).to(device)
        super().__init__(
            config, net, seed=seed, total_steps=total_steps, device=device, compute=compute
        )
        self.criterion = make_criterion(config, device)
        self.munchausen = make_munchausen(config, self.criterion)
        self.noise_generator = NoiseGenerator(net, config, seed=seed)
        self.masked = has_mask(spec.obs)
        self.step = GradientStep(self.online_target, self.loss, device, compute)

    # -- acting ----------------------------------------------------------------------------------

    def initial_state(self, batch: int) -> Tree:
        """The recurrent state before an episode's first row, [batch, H] each."""
        return self.net.memory.initial_state(batch, self.device)

    def actor(self, num_envs: int) -> ValueActor:
        """Epsilon-greedy on Q."""
        return ValueActor(self.net, self.config, self.generator, num_envs=num_envs)

    # -- learning --------------------------------------------------------------------------------

    def loss(self, segment: Segment, weight: Tensor) -> QLoss:
        """Loss, eta-mixed priorities and metrics of a batch of windows.

        Window positions: [0, bs) burn-in, [bs, bs + L) learned, the last n read by targets only.
        """
        c, bs, learned = self.config, self.window.burnin, self.window.learned
        criterion = self.criterion
        state = segment.state
        if c.state_init == "zero":
            state = self.initial_state(segment.reward.shape[1])
        inputs = self.inputs(segment)
        noise = self.noise_generator(self.online_target.updates, self.window.rows - bs, len(weight))
        q_values_no_grad = torch.no_grad()(self.q_values)
        target_outputs_of = self.compute.run_in_thread(
            lambda: q_values_no_grad(self.target, inputs, segment, state, noise.target)
        )
        outputs = self.q_values(self.net, inputs, segment, state, noise.online)
        target_outputs = target_outputs_of()

        ends = rows((segment.terminated, segment.truncated, segment.valid), bs, None)
        mask = allowed_actions(rows(inputs[0], bs, None)) if self.masked else None
        action = torch.where(ends[2], segment.action[bs:], 0)
        reward = shape_reward(segment.reward[bs:], c.reward_scale, c.reward_clip)
        if self.munchausen is not None:
            reward = reward + self.munchausen.reward(target_outputs, action, mask)
        n = nstep_return(reward, *ends, nstep=c.nstep, gamma=c.gamma)
        if self.munchausen is not None:
            value = self.munchausen.value(target_outputs, mask)
        else:
            selector = outputs.detach() if c.double else target_outputs
            value = criterion.select(target_outputs, greedy(criterion.mean(selector), mask))
        bootstrap = gather_bootstrap(value, n.steps[:learned])
        target = criterion.target(n.reward[:learned], n.discount[:learned], bootstrap)
        valid, action = ends[2][:learned], action[:learned]
        prediction = criterion.select(outputs[:learned].detach(), action)
        taus = None if noise.online.taus is None else noise.online.taus[:learned]
        out = criterion.loss(prediction, target, valid, weight, taus)
        count = valid.sum().clamp(min=1)
        metrics = {
            "train/loss": out.loss,
            "train/td_abs": out.td.sum() / count,
            "train/q_taken": torch.where(valid, out.prediction, 0.0).sum() / count,
            "train/target": torch.where(valid, out.target, 0.0).sum() / count,
            "train/valid_fraction": valid.float().mean(),
        }
        priority = mixed_priority(out.priority, valid, c.eta)
        return QLoss(
            out.loss, priority, metrics, outputs, criterion.outputs_grad(outputs, action, out.grad)
        )

    def inputs(self, segment: Segment) -> tuple[Tree, Tensor]:
        """(obs, previous action and reward) of every position, padding masked out."""
        c = self.config
        obs, *previous = network_inputs(segment, scale=c.reward_scale, clip=c.reward_clip)
        return obs, self.net.encode_previous(*previous)

    def q_values(
        self,
        net: QNet,
        inputs: tuple[Tree, Tensor],
        segment: Segment,
        state: Tree,
        noise: ForwardNoise = MEAN_WEIGHTS,
    ) -> Tensor:
        """Q [L + n, B, A] of one unroll after the burn-in, which has no gradient.

        A distribution is [L + n, B, A, N]. One unroll also means that noisy heads select bootstrap
        actions with the noise of the update; the target network has its own.
        ``state`` [B, H] is the one before each window's first own row.
        """
        bs = self.window.burnin
        with self.compute.autocast(self.device):
            if bs:
                with torch.no_grad():
                    x = net.inputs(*rows(inputs, 0, bs))
                    state = burn_in(net, x, state, segment.valid[:bs], segment.partial)
            q: Tensor = net.unroll(net.inputs(*rows(inputs, bs, None)), state, noise)[0]
        return q.float()

    @torch.no_grad()
    def delta_q(self, windows: Segment, history: Segment) -> dict[str, Tensor]:
        """Error of Q at the first and last learned row for a stored and for a zero state.

        |q(h') - q(h)|_2 / |max_a q(h)| averaged over windows, where h is the state unrolled by the
        present network from the trajectory's start (``history``, the rows before each window) and
        h' the one after burn-in from the stored or the zero state.
        Source: R2D2 section 3, figure 1 (there h is the stored state of every row).
        """
        bs, last = self.window.burnin, self.window.learned - 1
        past, inputs = self.inputs(history), self.inputs(windows)
        lengths = history.valid.sum(0)
        zero = self.initial_state(len(lengths))
        true = self.net.memory.state_after(self.net.inputs(*rows(past, 0, -1)), lengths, zero)

        def values(state: Tree) -> Tensor:
            return self.criterion.mean(self.q_values(self.net, inputs, windows, state))

        q = values(true)
        scale = q.amax((0, 2)).abs().clamp(min=1e-6)
        full = windows.valid[bs + last]
        found: dict[str, Tensor] = {}
        if not full.any():
            return found
        for name, state in (("stored", windows.state), ("zero", zero)):
            gap = (values(state) - q).norm(dim=-1) / scale
            found[f"train/delta_q_{name}_first"] = masked_mean(gap[0], full)
            found[f"train/delta_q_{name}_last"] = masked_mean(gap[last], full)
        return found
