"""One environment of a sync or async vector: its returns validated, its state saved and restored.

The state is captured from its attributes (``rlrun.env.state``) where that is possible. Otherwise
its open episode is replayed: every reset is then seeded with a function of the run's seed, the
index and the episode, and the actions of the open episode are recorded.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.env.agents import PettingZooEnv
from rlrun.env.contract import (
    KEPT,
    ContractViolation,
    ObservationValidator,
    close_error,
    contract_error,
    exception_text,
    is_ctrl_c,
    kept_numbers,
    reset_violation,
    step_violation,
)
from rlrun.env.state import (
    Probe,
    Unsupported,
    capture,
    capture_attributes,
    global_generators_kept,
    restore,
    restore_attributes,
    same_tree,
    tree_hash,
)
from rlrun.errors import EnvError

AnyEnv = gym.Env[Any, Any]
_FRESH_WORLD = ("bipedal_walker", "car_racing")  # modules whose reset reuses a Box2D world


def seed_spaces(env: AnyEnv, seed: int) -> None:
    """Seed the spaces, whose generators the operating system would seed at their first sample."""
    for owner in (env, env.unwrapped):
        owner.action_space.seed(seed)
        owner.observation_space.seed(seed)


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Environment ``index`` of a sync or async vector, with validation of its returns.

    Without it SyncVectorEnv casts or broadcasts wrong observations into its batch silently.
    A ``reset`` with a seed is the vector's reset (step 0), one without is an autoreset. Its info
    has the numbers that were asked for under ``KEPT``, [K], and nothing else of the environment's.
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
        """``max_replay_steps``: actions recorded of an episode; None: the state is never saved.

        ``keep_info``: keys of the environment's info whose values are kept, K of them; None: the
        info is passed on as it is. ``alone``: no other may be made to check its state, and no
        episode of it is repeated.
        """
        super().__init__(make())
        self._id, self._subject, self._steps = env_id, f"environment {index}", 0
        self._validator = ObservationValidator(
            self.env.observation_space, env_id, floats=index == 0
        )
        self._make, self._limit, self._index = make, max_replay_steps, index
        self._keep_info = keep_info
        self._seed = self._episode = 0
        self._reseed = False  # the next reset opens other episodes than those of the run's start
        self._obs: Any = None
        self._obs_hash = ""  # of the last observation, where that is not held
        self._actions: list[Any] | None = None  # of the open episode; None: it is not replayed
        self._before: list[dict[str, Any]] = []  # of the wrappers, before the episode's reset
        self._probe: Probe | None = None
        self._record: Callable[..., None] | None = None
        self._alone, self._checked = alone, alone
        self._start_checked = alone  # that an episode does not depend on those before
        self._start_hash = ""  # of the open episode's first observation, until that is checked
        self.inexact: str | None = None  # why its state cannot be restored bit for bit

    # -- rows ------------------------------------------------------------------------------------

    def _fault(self, message: str) -> EnvError:
        return contract_error(self._id, self._subject, self._steps, message)

    def _require(self, violation: tuple[str, str] | None) -> None:
        if violation is not None:
            raise self._fault(f"{violation[1]}; fix the environment or wrap it")

    def _raised(self, error: BaseException, call: str) -> EnvError:
        """Return the error for what ``call`` raised; raise ``error`` where it is not its fault."""
        if is_ctrl_c(error):
            raise error
        if isinstance(error, EnvError):
            return error
        if isinstance(error, ContractViolation):
            return self._fault(f"{error}; fix the environment or wrap it")
        return self._fault(exception_text(error, call))

    def _kept(self, info: Any) -> dict[str, Any]:
        """Return what is kept of an info. Raises: EnvError."""
        if isinstance(self.env, PettingZooEnv):  # it has read the infos of its agents
            return info  # type: ignore[no-any-return]
        if self._keep_info:
            numbers, message = kept_numbers(info, self._keep_info)
            if message is not None:
                raise self._fault(message)
            info = {KEPT: numbers}
        return {} if self._keep_info == () else info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        begins = seed is not None
        if seed is not None:
            self._seed, self._episode, self._steps = seed, 0, 0
            self._actions, self._reseed = None, False
            if self._obs is not None:
                self._replace_world()
        else:
            self._episode, self._steps = self._episode + 1, self._steps + 1
        try:
            if self._limit is not None or self._reseed:
                seed = self._prepare(seed)
            if seed is not None:
                seed_spaces(self.env, seed)
            result = self.env.reset(seed=seed, options=options)
        except BaseException as e:
            raise self._raised(e, "reset") from e
        self._require(reset_violation(result, self._validator))
        obs, info = result
        info = self._kept(info)
        self._obs = obs
        if not self._start_checked and self._actions is not None:
            self._start_hash = tree_hash(obs)
        if begins and self._limit is not None:
            self._choose_method()
        elif self._record is not None:
            self._record(None, obs)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        try:
            result = self.env.step(action)
        except BaseException as e:
            raise self._raised(e, "step") from e
        self._require(step_violation(result, self._validator))
        obs, reward, terminated, truncated, info = result
        info = self._kept(info)
        self._obs = obs
        if self._record is not None:
            self._record(action, obs, reward, terminated, truncated)
        return obs, reward, bool(terminated), bool(truncated), info

    def reopen(self, seed: int, episode: int) -> Any:
        """Return the first observation of an episode like number ``episode`` of this seed.

        For an environment that replaces one whose process has ended.
        """
        self._seed, self._episode, self._reseed = seed, episode - 1, True
        if self._limit is not None:
            self._choose_method()
        return self.reset()[0]

    # -- state -----------------------------------------------------------------------------------

    def _prepare(self, seed: int | None) -> int | None:
        """Return the seed of the next reset; begin the record of its episode."""
        if self._actions is not None:
            self._replace_world()
            self._actions = []
        if seed is None and (self._reseed or self._actions is not None):
            seed = self._episode_seed()
            self._reseed = False
        if self._actions is not None or self._episode == 0:
            self._before = self._wrapper_states()
        return seed

    def _episode_seed(self) -> int:
        words = np.random.SeedSequence((self._seed, self._episode)).generate_state(1)
        return int(words[0]) >> 1  # environments take int32

    def _replace_world(self) -> None:
        """Make an environment anew whose reset depends on the episodes before."""
        if any(module in type(self.env.unwrapped).__module__ for module in _FRESH_WORLD):
            self.env.close()
            self.env = self._make()

    def _choose_method(self) -> None:
        """Decide after the first reset, so that resets do not depend on checkpoints."""
        if self._alone:
            return
        try:
            state = capture(self.env)
        except Unsupported:
            self._actions, self._record = [], self._record_action
            return
        self._record = None
        if self._index == 0:
            self._probe = Probe(state, self._make)
            self._record = self._probe.record

    def _record_action(self, action: Any, *row: Any) -> None:
        assert self._actions is not None
        assert self._limit is not None
        if action is not None and len(self._actions) <= self._limit:
            self._actions.append(np.array(action))

    def _wrapper_states(self) -> list[dict[str, Any]]:
        """Return what wrappers carry from one episode to the next, the outermost first."""
        states, env = [], self.env
        while isinstance(env, gym.Wrapper):
            states.append(capture_attributes(env, skip="env"))
            env = env.env
        return states

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last step; ``inexact`` says why it lacks the environment's."""
        state: dict[str, Any] = {
            "seed": self._seed,
            "episode": self._episode,
            "steps": self._steps,
            "reseed": self._reseed,
            "obs": self._obs_hash if self._obs is None else tree_hash(self._obs),
        }
        if self._actions is not None:
            if len(self._actions) > (self._limit or 0):
                reason = f"its episode is longer than env.max_replay_steps = {self._limit}"
                return state | {"reason": reason}
            state |= {"actions": np.array(self._actions), "before": self._before}
        else:
            try:
                state["state"] = capture(self.env)
            except Unsupported as e:
                return state | {"reason": str(e)}
        if self.inexact is None:
            self.inexact = self._check(state)
        return state if self.inexact is None else state | {"reason": self.inexact}

    def _check(self, state: dict[str, Any]) -> str | None:
        """Compare another environment once; of a replay also the start of a later episode."""
        if not self._checked and self._index == 0:
            self._checked = True
            if (reason := self._violation(state)) is not None:
                return reason
        if self._start_checked or self._actions is None or self._episode == 0:
            return None
        self._start_checked = True
        return self._violation(state | {"actions": np.array([]), "obs": self._start_hash})

    def _violation(self, state: dict[str, Any]) -> str | None:
        """Return how another environment with this state differs, None if it does not."""
        if self._probe is not None:
            probe, self._probe, self._record = self._probe, None, None
            return probe.violation()
        if self._actions is None:
            return None  # the state is all there is of it
        with global_generators_kept():
            twin = CheckedEnv(self._make, env_id=self._id, index=-1, max_replay_steps=self._limit)
            reason = twin.load_state_dict(state)
            twin.close()
        return reason

    def load_state_dict(self, state: dict[str, Any]) -> str | None:
        """Continue from ``state``; return why that is not exact: then the next call is ``reset``.

        An environment that cannot continue opens other episodes than those of the run's start.
        """
        self._seed, self._episode = int(state["seed"]), int(state["episode"])
        self._steps, self._obs, self._obs_hash = int(state["steps"]), None, state["obs"]
        self._checked = self._index == 0 and "reason" not in state
        try:
            reason = state.get("reason") or self._continue(state)
        except EnvError as e:
            reason = str(e)
        self._reseed = state["reseed"] if reason is None else True
        self._start_checked = self._alone or (reason is None and self._episode > 0)
        return reason

    def _continue(self, state: dict[str, Any]) -> str | None:
        """Bring the environment to ``state``; return why it is not there."""
        self._record = self._probe = None
        try:
            if "actions" not in state:
                self._actions = None
                self.env.reset(seed=self._seed)
                restore(self.env, state["state"])
                same = same_tree(capture(self.env), state["state"])
                return None if same else "its restored state is not the one that was saved"
            return self._replay(state["actions"], state["before"])
        except Unsupported as e:
            return str(e)
        except BaseException as e:
            if is_ctrl_c(e):
                raise
            return exception_text(e, "step")

    def _replay(self, actions: np.ndarray, before: list[dict[str, Any]]) -> str | None:
        """Repeat the open episode from its reset."""
        self._actions, self._before, self._record = [], before, self._record_action
        self._replace_world()
        env: Any = self.env
        for states in before:
            restore_attributes(env, states)
            env = env.env
        seed = self._seed if self._episode == 0 else self._episode_seed()
        seed_spaces(self.env, seed)
        obs, _ = self.env.reset(seed=seed)
        for action in actions:
            obs = self.env.step(action)[0]
            self._actions.append(action)
        if tree_hash(obs) != self._obs_hash:
            return "its open episode, replayed, ends with another observation"
        self._obs = obs
        return None

    def close(self) -> None:
        try:
            self.env.close()
        except BaseException as e:
            if is_ctrl_c(e):
                raise
            raise close_error(self._id, self._subject, e) from e
