"""Acting with the distribution of a network: actors of policy=ppo, a2c, impala and of bc, iql.

Values are not computed: the learner computes them for all rows of a rollout at once.
"""

import numpy as np

from rlrun.acting.actor import Chosen, NetActor
from rlrun.functional.explore import draw_categorical, draw_gaussian
from rlrun.functional.masks import mask_logits_numpy
from rlrun.nets.actor_critic import ActorCritic
from rlrun.nets.policy_net import LOG_STD_BOUNDS, PolicyNet
from rlrun.schema import OnPolicyConfig
from rlrun.types import Tree


class OnPolicyActor(NetActor):
    """Sampled actions with their log-probability in ``extras["log_prob"]``.

    Real actions are samples of an unbounded Gaussian: the environment gets them in its own unit,
    clipped to its box; ``extras["raw_action"]`` holds the sample in the network's unit, and
    ``log_prob`` is the log density of the sample in that unit.
    """

    def __init__(
        self,
        net: ActorCritic,
        config: OnPolicyConfig,
        generator: np.random.Generator,
        *,
        num_envs: int,
    ) -> None:
        super().__init__(net, config, generator, num_envs=num_envs)
        self.net, self.sizes, self.bounds = net, net.sizes, net.bounds
        self.shape = (num_envs, *(net.space.shape or ()))
        self.extras = {"log_prob": np.zeros(num_envs, np.float32)}
        if not self.sizes:
            self.extras["raw_action"] = np.zeros(self.shape, np.float32)
        self.refresh()

    def refresh(self) -> None:
        super().refresh()
        if self.net.log_std is not None:
            self.log_std = self.net.log_std.detach().numpy(force=True).copy()

    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        """Return the mode where ``explore`` is None, else a sample; its values are not used."""
        generator = None if explore is None else self.generator
        if self.net.masked:
            outputs = mask_logits_numpy(outputs, obs)
        if self.sizes:
            action, log_prob = draw_categorical(outputs, self.sizes, generator)
            if action.shape != self.shape:
                action = action.reshape(self.shape)
            return action, {"log_prob": log_prob}
        raw, log_prob = draw_gaussian(outputs, self.log_std, generator)
        assert self.bounds is not None
        action = self.bounds.from_unit(raw)
        return action, {"log_prob": log_prob, "raw_action": raw.reshape(self.shape)}


class PolicyNetActor(NetActor):
    """The mode of a ``PolicyNet`` when greedy, else a sample."""

    def __init__(self, net: PolicyNet, generator: np.random.Generator, *, num_envs: int) -> None:
        super().__init__(net, None, generator, num_envs=num_envs)
        self.net, self.std = net, np.zeros(0, np.float32)
        self.bounds = net.bounds
        self.refresh()

    def refresh(self) -> None:
        super().refresh()
        if self.net.log_std is not None:
            self.std = self.net.log_std.detach().clamp(*LOG_STD_BOUNDS).exp().numpy(force=True)

    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        """Return the mode where ``explore`` is None, else a sample; its values are not used."""
        if self.bounds is None:
            logits = mask_logits_numpy(outputs, obs) if self.net.masked else outputs
            if explore is not None:  # argmax of logits + Gumbel noise samples the softmax
                logits = logits + self.generator.gumbel(size=logits.shape).astype(logits.dtype)
            return logits.argmax(-1), {}
        if explore is not None:
            noise = self.generator.standard_normal(outputs.shape, dtype=np.float32)
            outputs = np.clip(outputs + self.std * noise, -1, 1)
        return self.bounds.from_unit(outputs), {}
