"""Acting by action values: the actor of policy=dqn, r2d2, cql and pqn."""

import numpy as np

from rlrun.acting.actor import Chosen, NetActor
from rlrun.functional.explore import log_probability, select_action
from rlrun.functional.masks import MASK, allowed_actions
from rlrun.nets.qnet import QNet
from rlrun.schema import ActionValueConfig, SwitchedConfig, ValueConfig
from rlrun.types import Tree


class ValueActor(NetActor):
    """Greedy actions of a Q-network, replaced by uniform ones with a probability.

    Noisy networks: every environment has noise of its own; greedy actions are those of the mean
    weights. ``policy.noisy_resample`` sets how long the noise is kept: ``step``, until the next
    action (Fortunato et al. 2018, section 3.1, for DQN), or ``chunk``, until the next ``refresh``
    (the same section, for A3C's rollouts). With ``chunk`` an environment follows one perturbed
    policy for many steps, which explores states that independent deviations do not reach.

    ``extras["log_prob"]``, only where the policy reads it (``policy.trace=retrace``): of the action
    under the exploration it was taken with, given the noise.
    """

    def __init__(
        self,
        net: QNet,
        config: ActionValueConfig,
        generator: np.random.Generator,
        *,
        num_envs: int,
    ) -> None:
        super().__init__(net, config, generator, num_envs=num_envs)
        switches = config if isinstance(config, SwitchedConfig) else None
        self.noisy = switches is not None and switches.noisy is not None
        self.noise_per_chunk = switches is not None and switches.noisy_resample == "chunk"
        self.needs_noise = True  # the next exploring action draws noise, whatever the hold
        replay = config if isinstance(config, ValueConfig) else None
        # Of the outputs, None: they are Q.
        self.value_rescale_eps = None if replay is None else replay.value_rescale_eps
        if replay is not None and replay.records_log_prob:
            self.extras["log_prob"] = np.zeros(num_envs, np.float32)

    def refresh(self) -> None:
        super().refresh()
        self.needs_noise = True

    def perturb(self, explore: np.ndarray | None) -> None:
        if self.noisy and (explore is None or self.needs_noise or not self.noise_per_chunk):
            self.net_step.perturb(None if explore is None else self.generator)
            self.needs_noise = explore is None

    def choose(self, outputs: np.ndarray, obs: Tree, explore: np.ndarray | None) -> Chosen:
        mask = allowed_actions(obs) if isinstance(obs, dict) and MASK in obs else None
        action = select_action(outputs, explore, self.generator, mask)
        if not self.extras:
            return action, {}
        return action, {"log_prob": log_probability(outputs, action, explore, mask)}
