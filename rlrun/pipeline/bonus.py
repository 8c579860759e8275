"""Intrinsic reward proportional to the prediction error of a random target network (RND).

Source: Burda et al. 2018. A fixed random network maps observations to features. A second network,
the predictor, learns to predict them from collected rows. Its error is large for new observations.
The bonus is added to the rewards of a sample just before the policy learns from it, so it works
with any policy. Stored, logged and evaluated rewards stay raw. Old rows get a bonus for their
present novelty, not for that at the time of collection.

The predictor learns once from every collected row, not from samples. So novelty counts visits to
the environment, not how often a row was sampled (prioritized replay prefers rows of large TD
error). The running sums that normalise the bonus also need successive rows.

A row has a bonus if it is a valid step whose next observation counts: the last step of a truncated
episode has one, a terminating step has none. The observation after a termination belongs to no
return, and a bonus for it would reward termination.

Unlike Burda et al., one value function covers both rewards with the policy's discount, so the bonus
ends with the episode. ``policy.reward_scale`` and ``policy.reward_clip`` apply to the sum.
"""

import math
from dataclasses import asdict, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector.utils import create_empty_array
from torch import Tensor, nn

from rlrun.errors import NumericError
from rlrun.functional.novelty import (
    SampleMoments,
    bonus_reward,
    discounted_sums,
    empty_moments,
    merge_moments,
    prediction_error,
    whiten,
)
from rlrun.functional.rows import RAW_REWARD
from rlrun.functional.schedule import make_schedule
from rlrun.nets.torso import ImageAndVector, make_torso, mlp
from rlrun.policy.optim import Adam
from rlrun.schema import RNDConfig, TorsoConfig
from rlrun.spaces import CNN_SIDES
from rlrun.types import Chunk, Sample, Tree, torch_seed, tree_map

ADAM_EPS = 1e-8  # Kingma & Ba 2015
OBS_CLIP = 5.0  # standard deviations of whitened observations; Burda et al. 2018, section 2.4
MIN_STD = 1e-8  # of the bonus, which is divided by it


class FeatureNet(nn.Module):
    """Torso and linear layers to ``sizes``; orthogonal weights of gain sqrt(2), zero biases."""

    def __init__(self, torso: TorsoConfig, space: gym.Space[Any], sizes: tuple[int, ...]) -> None:
        super().__init__()
        made = make_torso(torso, space)
        assert not isinstance(made, ImageAndVector)
        self.torso = made
        self.head = mlp([self.torso.size, *sizes], torso.activation, last=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.orthogonal_(parameter, math.sqrt(2))
            else:
                nn.init.zeros_(parameter)

    def forward(self, whitened: Tensor) -> Tensor:
        """Return the features [*, K] of whitened torso inputs."""
        features: Tensor = self.head(self.torso.features(whitened))
        return features


class RND:
    """Random network distillation: ``observe`` a chunk, ``add_to`` its samples, then ``update``."""

    def __init__(
        self,
        config: RNDConfig,
        torso: TorsoConfig,
        *,
        space: gym.Space[Any],
        stacked: bool,
        columns: int,
        seed: int,
        total_steps: int,
        device: torch.device,
    ) -> None:
        """``space``: observations of the rows (single frames).

        ``stacked``: samples hold stacks of frames, of which the newest is used. ``torso``: only its
        kind and activation are used.
        """
        self.config, self.stacked, self.device = config, stacked, device
        self.coefficient = make_schedule(config.coefficient, total_steps=total_steps)
        self.lr = make_schedule(config.lr, total_steps=total_steps)
        if not isinstance(space, gym.spaces.Box):  # several spaces, read as one flat vector
            torso = TorsoConfig("mlp", torso.hidden, torso.activation, layer_norm=False)
        self.plane = torso.name in CNN_SIDES and len(space.shape or ()) == 2
        if self.plane:  # a single grey frame: convolutions need a channel axis
            space = gym.spaces.Box(0, 255, (1, *(space.shape or ())), np.uint8)
        torso = replace(torso, hidden=config.hidden, layer_norm=False)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(seed, "bonus"))
            self.target = FeatureNet(torso, space, (config.features,)).to(device)
            sizes = (*config.predictor_hidden, config.features)
            self.predictor = FeatureNet(torso, space, sizes).to(device)
        self.target.requires_grad_(False)
        parameters = list(self.predictor.parameters())
        self.optimiser = Adam(parameters, eps=ADAM_EPS, max_grad_norm=None, key="bonus.lr")
        example = tree_map(torch.from_numpy, create_empty_array(space, 1))
        self.obs = empty_moments(self.target.torso.inputs(example).shape[1:], device)
        self.sums = empty_moments((), device)  # of the discounted sums
        self.carried = torch.zeros(columns, device=device)
        self.pending: Tensor | None = None  # whitened inputs of the last chunk, not learned yet
        self.totals: dict[str, list[Tensor]] = {}  # sum and count of metrics since the last report

    # -- collected rows --------------------------------------------------------------------------

    @torch.no_grad()
    def observe(self, chunk: Chunk) -> None:
        """Add a collected chunk to the running statistics. ``update`` learns from it."""
        rewarded = torch.from_numpy(chunk.valid & ~chunk.terminated)
        valid = torch.from_numpy(chunk.valid).to(self.device)

        def next_obs(x: np.ndarray) -> Tensor:  # [N, *O] of the rows with a bonus
            return torch.from_numpy(x[1:])[rewarded].to(self.device)

        inputs = self._inputs(tree_map(next_obs, chunk.obs))
        self.obs = merge_moments(self.obs, inputs)
        self.pending = whiten(inputs, self.obs, OBS_CLIP)
        novelty = torch.zeros(rewarded.shape, device=self.device)
        novelty[rewarded.to(self.device)] = self._novelty(self.pending)
        sums, self.carried = discounted_sums(novelty, valid, self.carried, self.config.gamma)
        self.sums = merge_moments(self.sums, sums[valid])

    def update(self, env_steps: int) -> None:
        """Train the predictor once on every row of the last ``observe``, in order."""
        rows, self.pending = self.pending, None
        if rows is None or not len(rows):
            return
        lr = self.lr(env_steps)
        for batch in torch.split(rows, self.config.batch_size):
            with torch.enable_grad():
                loss = prediction_error(self.predictor(batch), self.target(batch)).mean()
                grads = torch.autograd.grad(loss, self.optimiser.parameters)
            self.optimiser.step(list(grads), lr)
            self._add_metric("train/bonus_loss", loss.detach())

    # -- samples ---------------------------------------------------------------------------------

    @torch.no_grad()
    def add_to(self, sample: Sample, *, record: bool = True) -> Sample:
        """Return the sample with coefficient * novelty / scale added to its rewards.

        ``extras`` keeps the raw rewards for networks that read them (``network_inputs``). Before
        the first ``observe`` the sample is returned unchanged. ``record``: the bonuses count in the
        metrics.
        """
        if not self.sums.count:
            return sample
        segment = sample.segment.to(self.device)
        rewarded = segment.valid & ~segment.terminated
        newest = tree_map(lambda x: x[1:, :, -1] if self.stacked else x[1:], segment.obs)
        inputs = self._inputs(newest)
        mask = rewarded.reshape(*rewarded.shape, *[1] * (inputs.ndim - 2))
        inputs = torch.where(mask, inputs, torch.zeros_like(inputs))  # end rows may hold anything
        novelty = self._novelty(whiten(inputs, self.obs, OBS_CLIP))
        scale = self.sums.var.sqrt().clamp(min=MIN_STD)
        coefficient = self.coefficient(sample.env_steps)
        reward, mean = bonus_reward(segment.reward, novelty, rewarded, factor=coefficient / scale)
        if record:
            self._add_metric("train/bonus_mean", mean)
            self._add_metric("train/bonus_scale", scale)
            self._add_metric("train/bonus_coefficient", torch.tensor(coefficient))
        extras = segment.extras | {RAW_REWARD: segment.reward}
        return replace(sample, segment=replace(segment, reward=reward, extras=extras))

    def _novelty(self, whitened: Tensor) -> Tensor:
        return prediction_error(self.predictor(whitened), self.target(whitened))

    def _inputs(self, obs: Tree) -> Tensor:
        """Return the torso inputs of single frames."""
        return self.target.torso.inputs(obs.unsqueeze(-3) if self.plane else obs)

    # -- metrics, state --------------------------------------------------------------------------

    def _add_metric(self, name: str, value: Tensor) -> None:
        """Add to a running sum without reading a value (no device synchronisation)."""
        total = self.totals.setdefault(name, [torch.zeros_like(value), torch.zeros(())])
        total[0] = total[0] + value
        total[1] += 1

    def metrics(self) -> dict[str, float]:
        """Return train/bonus_* metrics: means since the last call.

        Raises: NumericError if one of them is NaN or infinite.
        """
        means = {name: (total / count).item() for name, (total, count) in self.totals.items()}
        self.totals = {}
        for name, value in means.items():
            if not math.isfinite(value):
                raise NumericError(
                    f"{name} = {value}: the predictor diverged, or an observation is not finite; "
                    "it must stay finite; lower bonus.lr"
                )
        return means

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimiser and running statistics."""
        return {
            "target": dict(self.target.state_dict()),
            "predictor": dict(self.predictor.state_dict()),
            "optimiser": self.optimiser.state_dict(),
            **{name: asdict(getattr(self, name)) for name in ("obs", "sums")},
            "carried": self.carried,
            "totals": {name: list(total) for name, total in self.totals.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        self.predictor.load_state_dict(state["predictor"])
        self.optimiser.load_state_dict(state["optimiser"])
        for name in ("obs", "sums"):
            saved = state[name]
            moved = (saved[n].to(self.device, copy=True) for n in ("mean", "var"))
            setattr(self, name, SampleMoments(float(saved["count"]), *moved))
        self.carried = state["carried"].to(self.device, copy=True)
        self.totals = {name: list(total) for name, total in state["totals"].items()}
        self.pending = None
