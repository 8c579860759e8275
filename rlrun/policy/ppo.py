"""PPO with the clipped surrogate, feed-forward or recurrent.

Schulman et al., "Proximal Policy Optimization Algorithms", 2017; details as in Huang et al., "The
37 Implementation Details of Proximal Policy Optimization", 2022. With a memory, minibatches are
whole segments that begin with their stored state, which is exact: no burn-in.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlrun.functional.policy import (
    explained_variance,
    ppo_slope,
    ppo_terms,
    standardise,
    value_terms,
)
from rlrun.functional.returns import gae
from rlrun.nets.acting_policy import PolicyActor
from rlrun.nets.actor_critic import make_actor_critic
from rlrun.nets.compute import PLAIN, Compute
from rlrun.nets.onpolicy import Batch, Descender, Loss, Rows, deal, join, opening, told
from rlrun.schedule import make_schedule
from rlrun.schema import MemoryConfig, PPOConfig, TorsoConfig
from rlrun.types import Sample, Spec, Tree, Update, Window, generator


class PPO:
    """Draws actions from its distribution and learns from each rollout in several epochs."""

    window: Window | None = None  # it keeps no replay

    def __init__(
        self,
        config: PPOConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        *,
        spec: Spec,
        seed: int,
        total_steps: int,
        device: torch.device,
        compute: Compute = PLAIN,
    ) -> None:
        self.config, self.device, self.compute = config, device, compute
        net = make_actor_critic(config, torso, memory, spec, seed=seed).to(device)
        lr_at = make_schedule(config.lr, total_steps=total_steps)
        self.net, self.descender = net, Descender(net, config, lr_at)
        self.clip_at = make_schedule(config.clip, total_steps=total_steps)
        self.dealer = generator(seed, "minibatch")
        self.generator, self.seconds = generator(seed, "explore"), self.descender.seconds

    def actor(self, num_envs: int) -> PolicyActor:
        """Draws from the policy's distribution."""
        return PolicyActor(self.net, self.config, self.generator, num_envs=num_envs)

    def update(self, sample: Sample) -> Update:
        """``epochs`` passes over a rollout in minibatches of about ``batch_size`` rows.

        Advantages and value targets are those of the network that begins the update; metrics are
        those of the last minibatch.
        """
        c, clock = self.config, sample.env_steps
        rows = self.descender.read(sample.segment)
        whole = self.prepared(rows)
        parts, clip, steps = max(1, round(len(rows.places) / c.batch_size)), self.clip_at(clock), 0
        explained = explained_variance(whole.value, whole.target, whole.counted())
        if parts == 1:
            whole = self.standardised(whole)
        for epoch in range(c.epochs):
            batches = self.shuffled(whole, parts)
            for batch in batches[:-1]:
                self.minibatch(batch, clip, clock, tell=False)
            tell = c.target_kl is not None or epoch == c.epochs - 1
            metrics = self.minibatch(batches[-1], clip, clock, tell=tell)
            steps += len(batches)
            if c.target_kl is not None and metrics["train/approx_kl"] > c.target_kl:
                break
        self.descender.absorb(rows)
        return Update(None, metrics | {"train/explained_variance": explained}, steps=steps)

    @torch.no_grad()
    def prepared(self, rows: Rows) -> Batch:
        """The rollout's rows, or its segments where there is a memory, with their advantages."""
        c = self.config
        value = self.outputs(rows.obs, rows.side, rows.first, opening(rows.states))[1]
        found = gae(rows.reward, value, *rows.ends, gamma=c.gamma, trace=c.gae_lambda)
        return deal(rows, found, value[:-1], c.segment_len if self.net.recurrent else None)

    def shuffled(self, whole: Batch, parts: int) -> list[Batch]:
        """``whole`` in random minibatches; a single one needs no shuffling."""
        if parts == 1:
            return [whole]
        order = torch.from_numpy(self.dealer.permutation(whole.valid.shape[1]))
        return [self.standardised(batch) for batch in whole.part(order).slices(parts)]

    def standardised(self, batch: Batch) -> Batch:
        """The batch with advantages as they are descended on."""
        if not self.config.normalize_advantage:
            return batch
        return replace(batch, advantage=standardise(batch.advantage, batch.counted()))

    def minibatch(self, batch: Batch, clip: float, clock: int, *, tell: bool) -> dict[str, Tensor]:
        """One gradient step; its metrics where somebody is told."""
        out = self.loss(batch, clip, tell=tell)
        return out.metrics | self.descender.step(out.outputs, out.slopes, clock)

    def loss(self, batch: Batch, clip: float, *, tell: bool) -> Loss:
        """Clipped surrogate, (clipped) value error and the entropy bonus of a minibatch."""
        c, real = self.config, batch.counted()
        head, value = self.outputs(batch.obs, batch.side, batch.first, batch.state)
        choice = self.net.choice(head, batch.action)
        given = (choice.log_prob, batch.behaviour, batch.advantage, real)
        baseline = value_terms(value, batch.target, real, old=batch.value, clip=c.value_clip)
        out = join(c, choice, ppo_slope(*given, clip=clip), value, baseline.slope, real)
        if not tell:
            return out
        policy = ppo_terms(*given, clip=clip)
        more = {"train/approx_kl": policy.kl, "train/clip_fraction": policy.clipped}
        metrics = told(c, policy.loss, baseline.loss, choice, real) | more
        return out._replace(metrics=metrics)

    def outputs(self, obs: Tree, side: Tensor, first: Tensor, state: Tree) -> tuple[Tensor, Tensor]:
        """(parameters of the distribution [T, M, K], V [T, M]) in float32."""
        with self.compute.autocast(self.device):
            head, value = self.net(obs, side, first, state)
        return head.float(), value.float()

    def priority(self, sample: Sample) -> Tensor:
        raise AssertionError("a rollout has no priorities")

    def weights(self) -> dict[str, Tensor]:
        """The network's parameters and statistics, detached, not copied."""
        return self.descender.weights()

    def load(self, weights: dict[str, Tensor]) -> None:
        self.net.load_state_dict(weights)

    def state_dict(self) -> dict[str, Any]:
        dealt = {"dealer": self.dealer.bit_generator.state}
        acts = {"generator": self.generator.bit_generator.state}
        return self.descender.state_dict() | dealt | acts

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.descender.load_state_dict(state)
        self.dealer.bit_generator.state = state["dealer"]
        self.generator.bit_generator.state = state["generator"]
