"""Behaviour cloning: maximum likelihood of a dataset's actions, discrete or in a box.

Pomerleau 1991. With a memory it learns from windows: burn-in, then every learned row.
"""

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlrun.acting.stochastic import PolicyNetActor
from rlrun.functional.rows import masked_mean, network_inputs
from rlrun.nets.policy_net import make_policy_net
from rlrun.optim.adam import Adam
from rlrun.optim.compute import DEFAULT_COMPUTE, Compute
from rlrun.schedule import make_schedule
from rlrun.schema import BCConfig, MemoryConfig, TorsoConfig
from rlrun.types import Sample, Segment, Spec, Tree, Update, generator, tree_map


class ImitationLoss(NamedTuple):
    """Loss of a batch of windows, with its gradient."""

    loss: Tensor  # 0-d
    priority: Tensor  # [B] mean distance of the mode from the actions
    metrics: dict[str, Tensor]


class BC:
    """Behaviour cloning of sampled rows."""

    def __init__(
        self,
        config: BCConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = DEFAULT_COMPUTE,
    ) -> None:
        self.config, self.device, self.compute = config, device, compute
        self.window = config.window
        self.net = make_policy_net(torso, memory, config.head_hidden, spec, seed=seed).to(device)
        self.adam = Adam(self.net.parameters(), eps=config.adam_eps, grad_clip=config.grad_clip)
        self.lr_at = make_schedule(config.lr, total_steps=total_steps)
        self.generator = generator(seed, "explore")
        self.seconds = {"backward": 0.0, "optimiser": 0.0}

    def initial_state(self, batch: int) -> Tree:
        """The recurrent state before an episode's first row, [batch, H] each."""
        return self.net.memory.initial_state(batch, self.device)

    def actor(self, num_envs: int) -> PolicyNetActor:
        """An actor that samples, or takes the mode when greedy."""
        return PolicyNetActor(self.net, self.generator, num_envs=num_envs)

    def update(self, sample: Sample) -> Update:
        """One gradient step on ``sample``; priorities are the imitation errors."""
        out = self.loss(*sample.to(self.device))
        lr, began = self.lr_at(sample.env_steps), time.perf_counter()
        grads = list(torch.autograd.grad(out.loss, self.adam.parameters))
        backward = time.perf_counter()
        self.seconds["backward"] += backward - began
        norm = self.adam.step(grads, lr)
        self.seconds["optimiser"] += time.perf_counter() - backward
        metrics = {k: v.detach() for k, v in out.metrics.items()}
        stepped = {"train/grad_norm": norm, "train/lr": norm.new_full((), lr)}
        return Update(out.priority, metrics | stepped)

    def loss(self, segment: Segment, weight: Tensor) -> ImitationLoss:
        """- mean_b(w_b sum_t valid log pi(a_t | o_0..t) / L) over the learned rows.

        A stored state is another network's, so windows start from the zero state: exact where a
        window opens its episode, warmed up by the burn-in rows elsewhere.
        """
        bs, learned = self.window.burnin, self.window.learned
        obs, *_ = network_inputs(segment, scale=1.0, clip=None)
        valid = segment.valid[bs : bs + learned]
        with self.compute.autocast(self.device):
            out = self._unroll(obs, segment).float()
        action = segment.action[bs : bs + learned]
        keep = valid.reshape(*valid.shape, *[1] * (action.ndim - 2))
        action = torch.where(keep, action, torch.zeros_like(action))
        log_prob = torch.where(valid, self.net.log_prob(out, action), 0.0)
        loss = -(weight * log_prob.sum(0) / learned).mean()
        error = torch.where(valid, self.net.mode_error(out.detach(), action), 0.0)
        metrics = {
            "train/loss": loss,
            "train/log_prob": masked_mean(log_prob, valid),
            "train/imitation_error": masked_mean(error, valid),
            "train/valid_fraction": valid.float().mean(),
        }
        return ImitationLoss(loss, error.sum(0) / valid.sum(0).clamp(min=1), metrics)

    def _unroll(self, obs: Tree, segment: Segment) -> Tensor:
        """Logits or means [L, B, N] of the learned rows."""
        bs, learned, net = self.window.burnin, self.window.learned, self.net
        state = self.initial_state(segment.reward.shape[1])
        if bs:
            with torch.no_grad():
                state = self._burn_in(tree_map(lambda x: x[:bs], obs), segment, state)
        rows = tree_map(lambda x: x[bs : bs + learned], obs)
        return net.apply_mask(net.unroll(net.inputs(rows), state)[0], rows)

    def _burn_in(self, obs: Tree, segment: Segment, zero: Tree) -> Tree:
        """The state after each window's own burn-in rows, of which there may be none."""
        bs, memory = self.window.burnin, self.net.memory
        x, owned = self.net.inputs(obs), segment.valid[:bs].sum(0)
        # A window's own rows are the last ones: move them to the front and unroll that many.
        row = torch.arange(bs, device=x.device).unsqueeze(-1) + (bs - owned)
        x = x.gather(0, row.clamp(max=bs - 1).unsqueeze(-1).expand_as(x))
        return memory.state_after(x, owned, zero)

    @torch.no_grad()
    def priority(self, sample: Sample) -> Tensor:
        """The priorities [B] ``update`` would return, to rounding, without learning."""
        return self.loss(*sample.to(self.device)).priority

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters, detached, not copied."""
        return dict(self.net.state_dict())

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.weights(),
            "adam": self.adam.state_dict(),
            "generator": self.generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.adam.load_state_dict(state["adam"])
        self.generator.bit_generator.state = state["generator"]
