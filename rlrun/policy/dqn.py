"""DQN and its extensions, on the same rows and windows as R2D2; each extension is a switch.

Mnih et al. 2015; van Hasselt et al. 2016 (double); Wang et al. 2016 (dueling); C51, QR-DQN and IQN
(``distribution``, functional/criterion.py); Fortunato et al. 2018 (noisy); Vieillard et al. 2020
(Munchausen); Hessel et al. 2018 (Rainbow, all of them). A window is one learned row and the n rows
after it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from rlrun.acting.values import ValueActor
from rlrun.functional.criterion import make_criterion, make_munchausen
from rlrun.functional.masks import allowed_actions, has_mask
from rlrun.functional.returns import nstep_return
from rlrun.functional.rows import network_inputs, shape_reward
from rlrun.functional.value import QLoss, greedy
from rlrun.kernels.dqn import make_dqn_kernel
from rlrun.nets.forward_noise import ForwardNoise, NoiseGenerator
from rlrun.nets.qnet import QNet, make_qnet
from rlrun.optim.autograd import make_q_function
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.optim.step import GradientStep
from rlrun.policy.base.value_based import ValueBasedPolicy
from rlrun.schema import DQNConfig, MemoryConfig, TorsoConfig
from rlrun.types import Segment, Spec, Tree, tree_map


class DQN(ValueBasedPolicy[DQNConfig, QNet]):
    """Acts epsilon-greedily with a feed-forward Q-network and learns from single rows."""

    noise_generator: NoiseGenerator

    def __init__(
        self,
        config: DQNConfig,
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
        float32 = compute.precision == "float32"
        self.q_function = make_q_function(net, float32=float32)
        super().__init__(
            config, net, seed=seed, total_steps=total_steps, device=device, compute=compute,
            source=self.q_function,
        )  # fmt: skip
        self.target_q_function = make_q_function(self.target, float32=float32)
        self.criterion = make_criterion(config, device)
        self.munchausen = make_munchausen(config, self.criterion)
        self.noise_generator = NoiseGenerator(net, config, seed=seed)
        self.masked = has_mask(spec.obs)
        given = (config, self.online_target, self.q_function, self.target_q_function)
        own = type(self) is DQN  # a subclass's loss is not what the kernel computes
        kernel = make_dqn_kernel(*given, masked=self.masked) if own else None
        self.step = kernel or GradientStep(self.online_target, self.loss, device, compute)

    def actor(self, num_envs: int) -> ValueActor:
        """Epsilon-greedy on Q."""
        return ValueActor(self.net, self.config, self.generator, num_envs=num_envs)

    def loss(self, segment: Segment, weight: Tensor) -> QLoss:
        """Loss, priorities (|delta|, or KL of atoms) and metrics of row 0 of every window.

        Only two rows of a window are network inputs: the learned one and the one its target
        bootstraps from, k <= n rows later.
        """
        c, criterion = self.config, self.criterion
        noise = self.noise_generator(self.online_target.updates, len(weight))
        shaped = shape_reward(segment.reward, c.reward_scale, c.reward_clip)
        if self.munchausen is not None:
            shaped = shaped + self.bonus(segment, noise.target)
        ends = (segment.terminated, segment.truncated, segment.valid)
        n = nstep_return(shaped, *ends, nstep=c.nstep, gamma=c.gamma)
        discount = n.discount[0]
        row, next_row = self.inputs(segment, n.steps[0], discount > 0)
        outputs = self.values(self.q_function.q, row, noise.online)
        with torch.no_grad():
            target_outputs = self.values(self.target_q_function.values, next_row, noise.target)
            mask = allowed_actions(next_row[0]) if self.masked else None
            if self.munchausen is not None:
                bootstrap = self.munchausen.value(target_outputs, mask)
            else:
                selector = target_outputs
                if c.double:
                    selector = self.values(self.q_function.values, next_row, noise.select)
                bootstrap = criterion.select(target_outputs, greedy(criterion.mean(selector), mask))
            target = criterion.target(n.reward[0], discount, bootstrap)
            prediction, valid = criterion.select(outputs, segment.action[0]), segment.valid[:1]
            taus = noise.online.taus
            out = criterion.loss(
                prediction[None], target[None], valid, weight, None if taus is None else taus[None]
            )
            q_grad = criterion.outputs_grad(outputs[None], segment.action[:1], out.grad)[0]
            metrics = {
                "train/loss": out.loss,
                "train/td_abs": out.td.mean(),
                "train/q_taken": out.prediction.mean(),
                "train/target": out.target.mean(),
                "train/valid_fraction": valid.float().mean(),
            }
        return QLoss(out.loss, out.priority[0], metrics, outputs, q_grad)

    @torch.no_grad()
    def bonus(self, segment: Segment, noise: ForwardNoise) -> Tensor:
        """Munchausen's log pi(a) of the target network [T, B], not read in padding."""
        assert self.munchausen is not None
        c = self.config
        obs, *previous = network_inputs(segment, scale=c.reward_scale, clip=c.reward_clip)
        obs, encoded = tree_map(lambda x: x[:-1], (obs, self.net.encode_previous(*previous)))
        with self.compute.autocast(self.device):
            inputs = self.target.inputs(obs, encoded)
            outputs = self.target.unroll(inputs, (), ForwardNoise(noise.layers))[0].float()
        mask = allowed_actions(obs) if self.masked else None
        action = torch.where(segment.valid, segment.action, 0)
        return self.munchausen.reward(outputs, action, mask)

    def inputs(
        self, segment: Segment, bootstrap_row: Tensor, alive: Tensor
    ) -> tuple[tuple[Tree, Tensor], tuple[Tree, Tensor]]:
        """(obs, previous action and reward) of row 0 and of row ``bootstrap_row`` [B].

        The observation after a termination (not ``alive`` [B]) is undefined and replaced by zeros.
        """
        c, column = self.config, torch.arange(len(bootstrap_row), device=self.device)

        def at(x: Tensor) -> Tensor:
            return x[1] if c.nstep == 1 else x[bootstrap_row, column]

        if self.net.prev_inputs:
            obs, *previous = network_inputs(segment, scale=c.reward_scale, clip=c.reward_clip)
            encoded = self.net.encode_previous(*previous)
            return (tree_map(lambda x: x[0], obs), encoded[0]), (tree_map(at, obs), at(encoded))

        def masked(x: Tensor) -> Tensor:
            x = at(x)
            return torch.where(alive.reshape(-1, *[1] * (x.ndim - 1)), x, torch.zeros_like(x))

        none = segment.reward.new_empty(0)  # the observation is the only input
        return (tree_map(lambda x: x[0], segment.obs), none), (tree_map(masked, segment.obs), none)

    def values(
        self,
        function: Callable[[Tree, Tensor, ForwardNoise], Tensor],
        row: tuple[Tree, Tensor],
        noise: ForwardNoise,
    ) -> Tensor:
        """Q [B, A] of one row of every window, [B, A, N] where it is a distribution."""
        with self.compute.autocast(self.device):
            return function(*row, noise).float()
