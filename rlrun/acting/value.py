"""Acting by action values: what policy=dqn, r2d2 and cql collect and are evaluated with."""

import numpy as np

from rlrun.acting.step import QNetStep, make_qnet_step
from rlrun.functional.explore import select_action
from rlrun.functional.masks import MASK, allowed_actions
from rlrun.nets.qnet import QNet
from rlrun.schema import SwitchedConfig, ValueConfig
from rlrun.types import Act, Tree


class ValueActor:
    """Greedy actions of a Q-network, replaced by uniform ones with a probability.

    Noisy networks: every environment has noise of its own; greedy actions are those of the mean
    weights. ``policy.noisy_resample`` says how long a draw is kept: ``step``, until the next action
    (Fortunato et al. 2018, section 3.1, of DQN), or ``chunk``, until the weights are fetched again
    (the same, of A3C's rollouts): then an environment follows one perturbed policy for a while,
    which reaches what independent deviations do not.
    """

    def __init__(
        self, net: QNet, config: ValueConfig, generator: np.random.Generator, *, num_envs: int
    ) -> None:
        self.step: QNetStep = make_qnet_step(net, num_envs)
        self.initial_state = self.step.initial_state
        self.generator, self.scale, self.clip = generator, config.reward_scale, config.reward_clip
        self.noisy = isinstance(config, SwitchedConfig) and config.noisy is not None
        self.held = isinstance(config, SwitchedConfig) and config.noisy_resample == "chunk"
        self.due = True  # the next exploring action needs fresh noise
        self.extras: dict[str, np.ndarray] = {}

    def refresh(self) -> None:
        """See ``Actor``."""
        self.step.refresh()
        self.due = True

    def act(
        self,
        obs: Tree,
        first: np.ndarray,
        prev_action: np.ndarray,
        prev_reward: np.ndarray,
        state: Tree,
        *,
        explore: np.ndarray | None,
    ) -> Act:
        """See ``Actor``."""
        reward = prev_reward if self.scale == 1 else prev_reward * np.float32(self.scale)
        if self.clip is not None:
            reward = np.clip(reward, -self.clip, self.clip)
        if self.noisy and (explore is None or self.due or not self.held):
            self.step.perturb(None if explore is None else self.generator)
            self.due = explore is None
        q, state = self.step(obs, first, prev_action, reward, state)
        mask = allowed_actions(obs) if isinstance(obs, dict) and MASK in obs else None
        return Act(select_action(q, explore, self.generator, mask), {}, state)
