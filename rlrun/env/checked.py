"""One environment of a sync or async vector: returns validated, state saved and restored.

The state is captured from the environment's attributes (``rlrun.env.state``) if possible. Otherwise
its open episode is replayed: every reset is then seeded with a function of the run's seed, the
index and the episode, and the actions of the open episode are recorded.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.env import contract
from rlrun.env.agents import PettingZooEnv
from rlrun.env.state import (
    Probe,
    Unsupported,
    capture,
    capture_attributes,
    global_generators_kept,
    mixed_seed,
    restore_attributes,
    restore_exactly,
    tree_hash,
)
from rlrun.errors import EnvError

AnyEnv = gym.Env[Any, Any]
_FRESH_WORLD = ("bipedal_walker", "car_racing")  # modules whose reset reuses a Box2D world


def seed_spaces(env: AnyEnv, seed: int) -> None:
    """Seed the spaces. Unseeded, their generators use the operating system's entropy."""
    for owner in (env, env.unwrapped):
        owner.action_space.seed(seed)
        owner.observation_space.seed(seed)


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Environment ``index`` of a sync or async vector, with validation of its returns.

    Without it SyncVectorEnv silently casts or broadcasts wrong observations into its batch. A
    ``reset`` with a seed is the vector's reset (step 0), one without is an autoreset. Its info
    holds only the requested numbers, [K], under ``KEPT``.
    """

    def __init__(
        self,
        make: Callable[[], AnyEnv],
        *,
        env_id: str,
        index: int,
        max_replay_steps: int | None = None,
        keep_info: tuple[str, ...] | None = (),
        alone: bool = False,
    ) -> None:
        """``max_replay_steps``: most actions recorded of an episode; None: the state is not saved.

        ``keep_info``: keys of the environment's info whose values are kept, K of them; None: the
        info is passed on unchanged. ``alone``: no second environment may be made to check the
        state, and no episode is repeated.
        """
        super().__init__(make())
        self._make, self._limit, self._index = make, max_replay_steps, index
        self._id, self._keep_info = env_id, keep_info
        self._validator = contract.ObservationValidator(
            self.env.observation_space, env_id, floats=index == 0
        )
        self._seed = self._episode = self._steps = 0
        self._reseed = False  # the next reset opens other episodes than the run's start
        self._last: Any = None  # observation, or its hash after loading a state
        self._alone = alone
        self._actions: list[Any] | None = None  # of the open episode; None: not replayed
        self._before: list[dict[str, Any]] = []  # states of wrappers before the episode's reset
        self._probe: Probe | None = None
        # The first environment is compared with another one, and replays also in a later episode,
        # which must not depend on the first. Flags: of a later episode.
        self._unchecked = {False, True} if index == 0 and not alone else set()
        self.inexact: str | None = None  # why its state cannot be restored bit for bit

    # -- rows ------------------------------------------------------------------------------------

    def _fault(self, message: str) -> EnvError:
        return contract.contract_error(self._id, [self._index], self._steps, message)

    def _raised(self, error: BaseException, call: str) -> EnvError:
        """Return the environment's error for what ``call`` raised, or raise another's."""
        contract.pass_ctrl_c(error)
        if isinstance(error, EnvError):
            return error
        violates = isinstance(error, contract.ContractViolation)
        text = f"{error}; fix the environment or wrap it"
        return self._fault(text if violates else contract.exception_text(error, call))

    def _kept(self, result: Any, violation: tuple[str, str] | None) -> dict[str, Any]:
        """Return the numbers kept of an info.

        Raises: EnvError, also for a ``violation`` of its row.
        """
        if violation is not None:
            raise self._fault(f"{violation[1]}; fix the environment or wrap it")
        info = result[-1]
        if self._keep_info is None or isinstance(self.env, PettingZooEnv):  # reads agents' infos
            return info  # type: ignore[no-any-return]
        if not self._keep_info:
            return {}
        numbers, message = contract.kept_numbers(info, self._keep_info)
        if message is not None:
            raise self._fault(message)
        return {contract.KEPT: numbers}

    def reset(self, *, seed: int | None = None, options: Any = None) -> contract.ResetResult:
        begins = seed is not None
        if seed is not None:
            self._seed, self._episode, self._steps = seed, 0, 0
        else:
            self._episode, self._steps = self._episode + 1, self._steps + 1
        try:
            seed = self._prepare(seed)
            result = self.env.reset(seed=seed, options=options)
        except BaseException as e:
            raise self._raised(e, "reset") from e
        info = self._kept(result, contract.row_violation("reset", result, self._validator))
        self._last = obs = result[0]
        if begins and self._limit is not None:
            self._choose_method()
        elif self._probe is not None:
            self._probe.record(None, obs)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        taken = np.array(action)  # an environment may change its own
        try:
            result = self.env.step(action)
        except BaseException as e:
            raise self._raised(e, "step") from e
        info = self._kept(result, contract.row_violation("step", result, self._validator))
        obs, reward, terminated, truncated = result[:4]
        self._last = obs
        if self._probe is not None:
            self._probe.record(taken, obs, reward, terminated, truncated)
        elif self._actions is not None and len(self._actions) <= (self._limit or 0):
            self._actions.append(taken)
        return obs, reward, bool(terminated), bool(truncated), info

    def reopen(self, seed: int, episode: int) -> Any:
        """Return the first observation of an episode like number ``episode`` with this seed.

        For an environment that replaces one whose process has ended.
        """
        self._seed, self._episode, self._reseed = seed, episode - 1, True
        if self._limit is not None:
            self._choose_method()
        return self.reset()[0]

    # -- state -----------------------------------------------------------------------------------

    def _prepare(self, seed: int | None) -> int | None:
        """Return the seed of the next reset and begin the record of its episode.

        ``seed``: that of a vector's reset; None: an autoreset.
        """
        if seed is not None:
            self._actions, self._reseed = None, False
            if self._last is not None:
                self._replace_world()
        elif self._actions is not None:
            self._replace_world()
            self._actions = []
        if seed is None and (self._reseed or self._actions is not None):
            seed, self._reseed = self._episode_seed(), False
        if self._limit is not None and (self._actions is not None or self._episode == 0):
            self._before, env = [], self.env  # what wrappers carry on, the outermost first
            while isinstance(env, gym.Wrapper):
                self._before.append(capture_attributes(env, skip="env"))
                env = env.env
        if seed is not None:
            seed_spaces(self.env, seed)
        return seed

    def _episode_seed(self) -> int:
        return mixed_seed((self._seed, self._episode))

    def _replace_world(self) -> None:
        """Remake an environment whose reset depends on earlier episodes."""
        if any(module in type(self.env.unwrapped).__module__ for module in _FRESH_WORLD):
            self.env.close()
            self.env = self._make()

    def _choose_method(self) -> None:
        """Choose how to save the state, so that resets do not depend on checkpoints."""
        self._probe = None
        if self._alone:
            return
        try:
            state = capture(self.env)
            self._probe = Probe(state, self._make) if self._index == 0 else None
        except Unsupported:
            self._actions = []

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last step. ``reason`` says why it lacks the environment's."""
        last = self._last if isinstance(self._last, str) else tree_hash(self._last)
        state: dict[str, Any] = {"seed": self._seed, "episode": self._episode}
        state |= {"steps": self._steps, "reseed": self._reseed, "obs": last}
        if self._actions is None:
            try:
                state["state"] = capture(self.env)
            except Unsupported as e:
                return state | {"reason": str(e)}
        elif len(self._actions) > (self._limit or 0):
            text = f"its episode is longer than env.max_replay_steps = {self._limit}"
            return state | {"reason": text}
        else:
            state |= {"actions": np.array(self._actions), "before": self._before}
        later = self._actions is not None and self._episode > 0
        if self.inexact is None and later in self._unchecked:
            self._unchecked.remove(later)
            self.inexact = self._violation(state)
        return state if self.inexact is None else state | {"reason": self.inexact}

    def _violation(self, state: dict[str, Any]) -> str | None:
        """Return how another environment with this state differs, or None."""
        if self._actions is None:
            probe, self._probe = self._probe, None
            return None if probe is None else probe.violation()
        with global_generators_kept():
            twin = CheckedEnv(self._make, env_id=self._id, index=-1, max_replay_steps=self._limit)
            reason = twin.load_state_dict(state)
            twin.close()
        return reason

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Continue from ``state``. Return why that is not exact; then ``reset`` is next.

        An environment that cannot continue opens other episodes than at the run's start.
        """
        self._seed, self._episode = int(state["seed"]), int(state["episode"])
        self._steps, self._last = int(state["steps"]), str(state["obs"])
        self._probe, self._actions = None, None
        try:
            if (reason := state.get("reason")) is None:
                self._continue(state)
        except Unsupported as e:
            reason = str(e)
        except BaseException as e:
            contract.pass_ctrl_c(e)
            reason = contract.exception_text(e, "step")
        self._reseed = state["reseed"] if reason is None else True
        return reason

    def _continue(self, state: dict[str, Any]) -> None:
        """Bring the environment to ``state``. Raises: Unsupported if it does not get there."""
        if "actions" not in state:
            restore_exactly(self.env, state["state"], self._seed)
            return
        self._actions, self._before = [], state["before"]
        self._replace_world()
        env: Any = self.env
        for attributes in self._before:
            restore_attributes(env, attributes)
            env = env.env
        seed = self._seed if self._episode == 0 else self._episode_seed()
        seed_spaces(self.env, seed)
        obs = self.env.reset(seed=seed)[0]
        for action in state["actions"]:
            obs = self.env.step(action.copy())[0]
            self._actions.append(action)
        if tree_hash(obs) != self._last:
            raise Unsupported("its open episode, replayed, ends with another observation")
        self._last = obs

    def close(self) -> None:
        try:
            self.env.close()
        except BaseException as e:
            contract.pass_ctrl_c(e)
            raise contract.close_error(self._id, f"environment {self._index}", e) from e
