"""``rlrun doctor env=NAME``: what can be checked of an environment from outside.

Random actions, a few thousand steps, in two views: the single environment before anything validates
it, and the rows that a run gets from the configured backend. A check that finds something says what
to do; one that cannot be made says why. None of them proves an environment right.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RepeatAction, TimeLimit

from rlrun.env.adapter import make_env, make_one_env, probe_agents
from rlrun.env.agents import PREFIX
from rlrun.env.contract import (
    ObservationValidator,
    exception_text,
    faults_ignored,
    is_ctrl_c,
    pass_ctrl_c,
    reset_violation,
    step_violation,
)
from rlrun.env.rows import Env
from rlrun.env.state import row_hash
from rlrun.env.wrappers import MaxAndSkip
from rlrun.errors import EnvError
from rlrun.functional.masks import MASK, allowed_actions, has_mask
from rlrun.schema import AgentsConfig, EnvConfig
from rlrun.tree import tree_leaves, tree_map

AnyEnv = gym.Env[Any, Any]
OK, FINDING, UNKNOWN = "ok", "finding", "not checkable"
_FEW_STARTS = 5  # episodes from which on their starts are a range
_LOST_SHARE = 1e-3  # rounding errors in standard deviations from which digits are lost
REPLAYS = 3  # episodes that are repeated up to their last step
_REPLAY_STEPS, _REPLAY_SECONDS = 300, 0.3
_LIMITS = (  # attributes that name a limit
    *("max_steps", "max_episode_steps", "_max_episode_steps", "time_limit", "horizon"),
    *("episode_length", "max_cycles", "episode_limit"),
)
_FIX = "a run would end with exit code 3; fix the environment or wrap it"
_TRUNCATE = "return truncated=True and terminated=False where only the time is over"
NO_END = "no episode ended within the steps made; env.max_episode_steps=100 makes them end"
LATE = "no episode ended within the {} steps that there was time for; they take long"
FEW = 3  # steps that are made however long they take
WAITS = 10  # times its CPU seconds that a walk may take where an environment waits


class Actions:
    """Random actions of a space, allowed ones where the observation has a mask."""

    def __init__(self, action: gym.Space[Any], obs: gym.Space[Any], seed: int) -> None:
        self._space: Any = deepcopy(action)
        self._space.seed(seed)
        self._rng = np.random.default_rng(seed)
        self._masked = has_mask(obs) and isinstance(action, gym.spaces.Discrete)
        self._start = getattr(action, "start", 0)

    def __call__(self, obs: Any) -> Any:
        """Return an action of one environment whose observation is ``obs``."""
        if not self._masked:
            return self._space.sample()
        allowed = np.flatnonzero(allowed_actions({MASK: np.asarray(obs[MASK])}))
        return self._space.dtype.type(self._start + self._rng.choice(allowed))

    def batch(self, obs: Any, num_envs: int) -> np.ndarray:
        """Return actions [E, *A] of all environments, counted from 0."""
        sampled = [self(tree_map(lambda x, i=i: x[i], obs)) for i in range(num_envs)]
        actions: np.ndarray = np.stack(sampled) - np.asarray(self._start)
        return actions


@dataclass
class Episode:
    """An episode of a single environment."""

    obs: list[Any]  # length + 1 observations, the last is the final one
    hashes: list[str]  # of the observations
    actions: list[Any] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @property
    def length(self) -> int:
        return len(self.actions)

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class SingleWalk:
    """Episodes of a single environment; a violation of the contract ends the walk."""

    episodes: list[Episode] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    violations: dict[str, str] = field(default_factory=dict)
    """Keys "observation", "reward", "flags" or "exception", values what is wrong."""
    outside: str | None = None  # the first float beyond the bounds of its space
    late: bool = False  # the time was over before all steps were made

    @property
    def steps(self) -> int:
        return sum(episode.length for episode in self.episodes)

    @property
    def no_end(self) -> str:
        """Why nothing can be said of ends."""
        return LATE.format(self.steps) if self.late else NO_END

    @property
    def ended(self) -> list[Episode]:
        return [episode for episode in self.episodes if episode.ended]


def walk_single(
    env: AnyEnv, *, seed: int, steps: int, seconds: float, episodes: int | None = None
) -> SingleWalk:
    """Return ``steps`` steps of random actions, fewer (not less than FEW) after ``seconds`` of CPU
    time, which a busy machine does not shorten, ``WAITS`` times as long, or ``episodes``.
    """
    walk, busy, deadline = SingleWalk(), time.thread_time(), time.monotonic() + WAITS * seconds
    actions = Actions(env.action_space, env.observation_space, seed)
    validator = ObservationValidator(env.observation_space, floats=False)
    try:
        obs, ordered = _opened(walk, validator, env.reset(seed=seed))
        while ordered and walk.steps < steps:
            late = time.thread_time() - busy > seconds or time.monotonic() > deadline
            if walk.steps >= FEW and late:
                walk.late = True
                break
            episode = walk.episodes[-1]
            if episode.ended:
                if len(walk.episodes) == episodes:
                    break
                obs, ordered = _opened(walk, validator, env.reset())
                continue
            episode.actions.append(actions(obs))
            result = env.step(episode.actions[-1])
            ordered = _stepped(walk, validator, result)
            obs = result[0] if ordered else obs
    except BaseException as e:
        if is_ctrl_c(e):
            raise
        walk.violations["exception"] = exception_text(e, "reset or step").partition(";")[0]
    return walk


def _opened(walk: SingleWalk, validator: ObservationValidator, result: Any) -> tuple[Any, bool]:
    """Begin an episode; return its first observation and whether that is in order."""
    violation = reset_violation(result, validator)
    if violation is not None:
        walk.violations[violation[0]] = violation[1]
        return None, False
    obs = result[0]
    walk.outside = walk.outside or validator.floats_violation(obs)
    walk.episodes.append(Episode([tree_map(np.array, obs)], [row_hash(obs)]))
    return obs, True


def _stepped(walk: SingleWalk, validator: ObservationValidator, result: Any) -> bool:
    """Add a step to the open episode; return whether it is in order."""
    violation = step_violation(result, validator)
    if violation is not None:
        walk.violations[violation[0]] = violation[1]
        return False
    obs, reward, terminated, truncated, _ = result
    walk.outside = walk.outside or validator.floats_violation(obs)
    episode = walk.episodes[-1]
    episode.obs.append(tree_map(np.array, obs))
    episode.hashes.append(row_hash(obs))
    episode.terminated, episode.truncated = bool(terminated), bool(truncated)
    walk.rewards.append(float(reward))
    return True


@dataclass
class RowsWalk:
    """Rows [T, E] of a vector environment; row 0 is the reset."""

    hashes: np.ndarray  # [T, E] str: of the observations
    reward: np.ndarray  # [T, E] float32
    ended: np.ndarray  # [T, E] bool: terminated or truncated
    truncated: np.ndarray  # [T, E] bool
    first: np.ndarray  # [T, E] bool
    last: Any  # observation [E, ...] of the last row

    @property
    def steps(self) -> int:
        return len(self.hashes) - 1


def walk_rows(
    env: Env,
    *,
    seed: int,
    steps: int,
    seconds: float,
    other_after_end: bool = False,
    last: Any = None,
) -> RowsWalk:
    """Return rows of random actions, ``steps`` of them or fewer (not less than FEW) after
    ``seconds``.

    ``other_after_end``: those that a NEXT_STEP environment ignores, of the step after an episode's
    end, are others. ``last``: the observation to go on from without a reset.

    Raises: EnvError: the environment violated its contract.
    """
    count, deadline = env.num_envs, time.monotonic() + seconds
    actions = Actions(env.action_space, env.obs_space, seed)
    other = Actions(env.action_space, env.obs_space, seed + 1)
    obs = env.reset(seed=seed) if last is None else last
    done = np.zeros(count, np.bool_)
    rows = [(row_hashes(obs, count), np.zeros(count, np.float32), done, done, ~done)]
    while len(rows) <= steps and (len(rows) <= FEW or time.monotonic() <= deadline):
        action = actions.batch(obs, count)
        if other_after_end and done.any():
            ignored = other.batch(obs, count)
            action = np.where(done.reshape(-1, *[1] * (action.ndim - 1)), ignored, action)
        s = env.step(action)
        obs = s.obs
        done = s.terminated | s.truncated
        flags = s.truncated.copy(), s.first.copy()
        rows.append((row_hashes(obs, count), s.reward.copy(), done, *flags))
    hashes, reward, ended, truncated, first = map(np.stack, zip(*rows, strict=True))
    return RowsWalk(hashes, reward, ended, truncated, first, tree_map(np.array, obs))


def row_hashes(obs: Any, count: int) -> np.ndarray:
    """Return the hashes [E] of the observations of E environments."""
    return np.array([row_hash(tree_map(lambda x, i=i: x[i], obs)) for i in range(count)])


@dataclass(frozen=True, slots=True)
class Check:
    """Verdict of one check. ``text``: what was seen, what to do, or why it cannot be made."""

    name: str
    verdict: str  # OK, FINDING or UNKNOWN
    text: str


@dataclass(frozen=True)
class Limits:
    """Time limits of an environment in steps: Gymnasium's, and those that its attributes name."""

    registered: int | None
    own: dict[str, int]

    @classmethod
    def of(cls, env: AnyEnv) -> "Limits":
        """Return those of ``env``; Gymnasium's only where a row is one step of it."""
        registered: int | None = None
        layer = env
        while isinstance(layer, gym.Wrapper):
            if isinstance(layer, TimeLimit):
                registered = layer._max_episode_steps
            elif isinstance(layer, RepeatAction | MaxAndSkip):
                break
            layer = layer.env
        named = {name: getattr(env.unwrapped, name, None) for name in _LIMITS}
        return cls(registered, {n: x for n, x in named.items() if isinstance(x, int)})


def contract_checks(walk: SingleWalk, limit: int | None) -> Iterator[Check]:
    """Yield the checks of spaces, reward and flags, and of the mask where there is one.

    ``limit``: steps after which Gymnasium truncates, whatever the environment says of that step.
    """
    wrong, count = walk.violations, f"{walk.steps} steps, {len(walk.ended)} ended episodes"
    if (text := wrong.get("exception") or wrong.get("observation")) is not None:
        yield Check("spaces", FINDING, f"after {walk.steps} steps: {text}; {_FIX}")
    elif walk.outside is not None:
        text = (
            f"{walk.outside}; it is passed on, but declare wider bounds: wrappers compute with them"
        )
        yield Check("spaces", FINDING, text)
    elif not walk.steps:
        yield Check("spaces", UNKNOWN, "no step was made")
    else:
        yield Check("spaces", OK, f"observations in their space, no action refused; {count}")
    if (text := wrong.get("reward")) is not None:
        yield Check("reward", FINDING, f"after {walk.steps} steps: {text}; {_FIX}")
    elif not walk.rewards:
        yield Check("reward", UNKNOWN, "no step was made")
    else:
        low, high = min(walk.rewards), max(walk.rewards)
        yield Check("reward", OK, f"finite, {low:g} to {high:g} per step")
    yield _flags(walk, limit)
    if walk.episodes and (text := lost_digits(walk)) is not None:
        yield Check("precision", FINDING, text)
    if walk.episodes and _masks(walk.episodes[0].obs[0]) is not None:
        yield _mask(walk)


def _flags(walk: SingleWalk, limit: int | None) -> Check:
    if (text := walk.violations.get("flags")) is not None:
        return Check("flags", FINDING, f"after {walk.steps} steps: {text}; {_FIX}")
    if not walk.ended:
        return Check("flags", UNKNOWN, walk.no_end)
    both = sum(e.terminated and e.truncated and e.length != limit for e in walk.ended)
    if both > 1 and 2 * both > len(walk.ended):
        text = f"terminated and truncated are both True at {both} of {len(walk.ended)} ends"
        return Check("flags", FINDING, f"{text}, taken for terminated (no value); {_TRUNCATE}")
    terminated = sum(e.terminated for e in walk.ended)
    text = f"{terminated} episodes terminated, {len(walk.ended) - terminated} truncated"
    return Check("flags", OK, text)


def lost_digits(walk: SingleWalk) -> str | None:
    """Describe the first number whose changes float32, which networks read, does not show."""
    rows = [obs for episode in walk.episodes for obs in episode.obs]
    for i, leaf in enumerate(tree_leaves(rows[0])):
        x = np.asarray(leaf)
        if x.dtype.kind not in "fiu" or x.dtype.itemsize < 4 or x.dtype == np.float32:
            continue
        values = np.stack([np.asarray(tree_leaves(row)[i], np.float64) for row in rows])
        error = np.abs(values - values.astype(np.float32)).max(0)
        lost = error > _LOST_SHARE * values.std(0)
        lost &= np.ptp(values, 0) > 0
        if lost.any():
            place = tuple(int(k) for k in np.argwhere(lost)[0])
            low, high = values.min(0)[place], values.max(0)[place]
            name = f"leaf {i}, position {list(place)}" if place else f"leaf {i}"
            return (
                f"observation ({name}) is {low:.17g} to {high:.17g}, of which float32 loses up to "
                f"{error[place]:.2g}, and networks read float32; observe differences, or use "
                "policy.normalize_obs=true (ppo, a2c, impala), which subtracts the mean before"
            )
    return None


def _masks(obs: Any) -> Any:
    return obs[MASK] if isinstance(obs, dict) and MASK in obs else None


def _mask(walk: SingleWalk) -> Check:
    """An open episode has an allowed action at every step."""
    for number, episode in enumerate(walk.episodes):
        for t, obs in enumerate(episode.obs[: episode.length]):
            if not np.any(_masks(obs)):
                text = (
                    f"no action is allowed at step {t} of episode {number}, so all are taken for it"
                )
                return Check(
                    MASK, FINDING, f"{text}; end the episode, or allow one that does nothing"
                )
    forbidden = np.mean([1 - np.mean(_masks(o) != 0) for e in walk.episodes for o in e.obs[:-1]])
    return Check(MASK, OK, f"an action is always allowed, {forbidden:.0%} of them are forbidden")


def limit_check(walk: SingleWalk, limits: Limits) -> Check:
    """A time limit must truncate, not terminate: the value of its last observation still counts."""
    name, ended, limit = "time limit", walk.ended, limits.registered
    if not ended:
        return Check(name, UNKNOWN, walk.no_end) if limit is None else _trusted(limit)
    lengths = {episode.length for episode in ended}
    all_terminated = all(episode.terminated for episode in ended)
    only = min(lengths) if len(lengths) == 1 and len(ended) > 2 and all_terminated else None
    at_limit = [e for e in ended if e.length == limit]
    if len(at_limit) > 1 and all(e.terminated for e in at_limit):
        text = f"all {len(at_limit)} episodes of {limit} steps, the registered limit, terminated"
        return Check(name, FINDING, f"{text}: their last value would be 0; {_TRUNCATE}")
    if only is not None and (own := [n for n, x in limits.own.items() if x == only]):
        text = f"all {len(ended)} episodes terminated after {only} steps, its {own[0]}"
        return Check(name, FINDING, f"{text}: their last value would be 0; {_TRUNCATE}")
    if only is not None and only > 1:
        text = f"all {len(ended)} episodes terminated after {only} steps: the task's own end?"
        return Check(name, UNKNOWN, f"{text} If it is a limit, {_TRUNCATE}")
    if truncated := sum(e.truncated and not e.terminated for e in ended):
        return Check(name, OK, f"{truncated} of {len(ended)} episodes were truncated")
    if limit is not None:
        return _trusted(limit)
    return Check(name, UNKNOWN, "no episode was truncated and no limit is registered")


def _trusted(limit: int) -> Check:
    text = f"Gymnasium's TimeLimit truncates after {limit} steps; no random episode was that long"
    return Check("time limit", OK, text)


def final_observation_check(walk: SingleWalk, make: Callable[[], AnyEnv], seed: int) -> Check:
    """The observation of an episode's last step must not be that of a reset.

    Compared with the first one of the next episode, with what a reset in place of the last step
    returns (an environment that resets itself in ``step`` returns just that), and with the places
    where episodes start.
    """
    name, ended = "final observation", walk.ended
    if not ended:
        return Check(name, UNKNOWN, walk.no_end)
    if all(len(set(episode.hashes)) == 1 for episode in ended):
        return Check(name, UNKNOWN, "observations do not change within episodes")
    fix = "step() must not reset: return the final observation, rlrun calls reset()"
    pairs = list(zip(walk.episodes, walk.episodes[1:], strict=False))
    if len(pairs) > 1 and all(a.hashes[-1] == b.hashes[0] for a, b in pairs):
        text = f"in all {len(pairs)} episodes it is the first one of the next episode"
        return Check(name, FINDING, f"{text}; {fix}")
    repeated = [x for n in range(REPLAYS) if (x := _ends_in_reset(make, seed + n)) is not None]
    if len(repeated) > 1 and all(repeated):
        text = f"in {len(repeated)} episodes it is what reset() returns in place of the last step"
        return Check(name, FINDING, f"{text}; {fix}")
    if len(ended) >= _FEW_STARTS and not walk.violations and _ends_where_episodes_start(ended):
        text = f"in all {len(ended)} episodes it lies among the first ones, and the one before it"
        return Check(name, FINDING, f"{text} does not, as after a reset; {fix}")
    return Check(name, OK, f"not that of a reset, {len(ended)} episodes")


def _ends_where_episodes_start(ended: Sequence[Episode]) -> bool:
    """Return True where all last observations lie among the first ones, those before hardly ever.

    Among them: nearer to one of another episode than twice the largest such distance of the first
    ones themselves, in deviations of each number.
    """
    starts, before, finals = (_numbers([e.obs[i] for e in ended]) for i in (0, -2, -1))
    spread = starts.std(axis=0)
    varies = spread > 0
    if not varies.any():  # compared above
        return False

    def distances(points: np.ndarray) -> np.ndarray:
        moved = (points[:, ~varies] != starts[0, ~varies]).any(axis=1)
        nearest = np.full(len(points), np.inf)
        for i, point in enumerate(points):
            others = np.delete(starts, i, axis=0)[:, varies]
            if not moved[i]:
                nearest[i] = (np.abs(others - point[varies]) / spread[varies]).max(axis=1).min()
        return nearest

    limit = 2 * distances(starts).max()
    return bool((distances(finals) <= limit).all() and (distances(before) > limit).mean() >= 0.9)


def _numbers(obs: Sequence[Any]) -> np.ndarray:
    """All numbers of each observation, float64 [n, d]."""
    return np.array([np.concatenate([np.ravel(x) for x in tree_leaves(o)]) for o in obs], float)


def _ends_in_reset(make: Callable[[], AnyEnv], seed: int) -> bool | None:
    """True: an episode ends with what a reset in place of its last step returns; None: no end.

    False where a reset in place of the step before it does the same: all observations are drawn.
    """
    env = make()
    try:
        episode = first_episode(env, seed)
        if episode is None or episode.length < 2:
            return None
        same = []
        for t in (episode.length - 1, episode.length):
            env.reset(seed=seed)
            for action in episode.actions[: t - 1]:
                env.step(action)
            same.append(row_hash(env.reset()[0]) == episode.hashes[t])
        return same == [False, True]
    except BaseException as e:  # what it raises is a finding of the walk
        pass_ctrl_c(e)
        return None
    finally:
        with faults_ignored():
            env.close()


def first_episode(env: AnyEnv, seed: int) -> Episode | None:
    """Return the first episode of random actions after a reset with ``seed``; None: no end."""
    seconds = _REPLAY_SECONDS
    walk = walk_single(env, seed=seed, steps=_REPLAY_STEPS, seconds=seconds, episodes=1)
    return walk.ended[0] if walk.ended else None


_SEED, _NUM_ENVS = 20_261, 2
_SINGLE_STEPS, _ROWS_STEPS, _STATE_STEPS = 2000, 200, 30
_SHARES = 6  # walks that take most of the time
_NO_SINGLE = "this backend has no single environments; its rows are validated as they come"
_MODE = (
    'a NEXT_STEP environment resets there and ignores the action; state its metadata["autoreset_'
    'mode"], or set env.backend=sync'
)


def examine(
    config: EnvConfig, agents: AgentsConfig | None, *, seconds: float = 5.0
) -> Iterator[Check]:
    """Yield the verdict of every check.

    ``seconds``: about how long all may take where an environment computes; a slow one makes fewer
    steps.

    Raises: ConfigError: it cannot be made.
    """
    rows = _Rows(config, agents, seconds / _SHARES)
    probe_agents(config, agents)  # what cannot be made is refused before anything is said
    rows.make().close()
    checks: list[Check] = []
    single: Any = None
    limits = Limits(config.max_episode_steps, {})
    if config.backend == "envpool" or config.id.startswith(PREFIX):
        for name in ("spaces", "reward", "flags", "time limit", "final observation"):
            yield Check(name, UNKNOWN, _NO_SINGLE)
    else:
        single = partial(make_one_env, config, validate=False)
        env = single()
        limits = Limits.of(env)
        walk = walk_single(env, seed=_SEED, steps=_SINGLE_STEPS, seconds=rows.seconds)
        _close(env)
        checks = [*contract_checks(walk, limits.registered)]
        yield from checks
        yield limit_check(walk, limits)
        yield final_observation_check(walk, single, _SEED + 1)
    refused = any(check.verdict == FINDING for check in checks)  # a run would end for that
    native = config.backend in ("auto", "vector") and not config.wrappers
    native = native and config.instances is None  # two at once
    yield from rows.checks(limits.registered, single if native else None, explained=refused)
    yield rows.state()


class _Rows:
    """Checks of the rows of an environment."""

    def __init__(self, config: EnvConfig, agents: AgentsConfig | None, seconds: float) -> None:
        # No walk goes on after a restart: its rows would be those of another episode.
        self.config = replace(config, on_worker_failure="stop")
        self.agents, self.seconds = agents, seconds

    def make(self, *, num_envs: int = _NUM_ENVS, resumable: bool = False) -> Env:
        num_envs = min(num_envs, self.config.instances or num_envs)
        keep_info = (self.config.success,) if self.config.success else ()
        return make_env(
            self.config,
            num_envs=num_envs,
            keep_info=keep_info,
            agents=self.agents,
            resumable=resumable,
        )

    def walk(self, **more: Any) -> RowsWalk:
        env = self.make()
        try:
            return walk_rows(env, seed=_SEED, steps=_ROWS_STEPS, seconds=self.seconds, **more)
        finally:
            _close(env)

    def checks(self, limit: int | None, single: Any, *, explained: bool) -> Iterator[Check]:
        """Determinism, and the row after an episode's end.

        ``limit``: steps after which an episode is truncated. ``single``: makes the environment that
        these rows have to repeat; None: they are made of it.

        ``explained``: an earlier check has found why a run ends.
        """
        try:
            one, two = self.walk(), self.walk()
            yield _determinism(one, two)
            if not one.ended[:-1].any():
                text = NO_END if one.steps == _ROWS_STEPS else LATE.format(one.steps)
                yield Check("step after the end", UNKNOWN, text)
                return
            other = self.walk(other_after_end=True)
            yield self._after_end(one, two, other, limit, single)
        except EnvError as e:
            yield Check("determinism", UNKNOWN if explained else FINDING, f"a run ends: {e}")
            yield Check("step after the end", UNKNOWN, "a run ends before")

    def _after_end(
        self, one: RowsWalk, two: RowsWalk, other: RowsWalk, limit: int | None, single: Any
    ) -> Check:
        name, opens = "step after the end", one.ended[:-1]  # the next row opens an episode
        message = None
        if (one.reward[1:][opens] != 0).any():
            message = "the row that opens an episode has a reward"
        elif (
            one.ended.shape[1] == (self.config.instances or _NUM_ENVS)
            and one.ended[1:][opens].any()
        ):
            # columns of agents wait, in rows that end, until the last agent of a team has left
            message = "an episode ends in the row that opens it"
        message = message or _shortened(one, limit)
        message = message or (None if single is None else self._other_last_row(single))
        if message is None and first_difference(one, two) is not None:
            return Check(name, UNKNOWN, "rows of one seed differ, see determinism")
        if message is None and (row := _action_taken(one, other)) is not None:
            message = f"the observation of row {row} depends on the action"
        if message is not None:
            return Check(name, FINDING, f"{message}; {_MODE}")
        return Check(name, OK, f"{int(opens.sum())} resets: no reward, no flag, the action ignored")

    def _other_last_row(self, make_single: Any) -> str | None:
        """Describe a last row that is not that of the single environment, None where it is.

        Only where the rows before it are the same: native environments may draw other numbers.
        """
        single, rows = make_single(), self.make(num_envs=1)
        try:
            episodes = [first_episode(single, _SEED + n) for n in range(REPLAYS)]
            repeated = [
                _last_row(rows, episode, _SEED + n)
                for n, episode in enumerate(episodes)
                if episode is not None and rows.num_envs == 1
            ]
        except EnvError:
            return None
        finally:
            _close(single)
            _close(rows)
        if len(repeated) > 1 and all(x is False for x in repeated):
            return "the last row of an episode is not that of the single environment"
        return None

    def state(self) -> Check:
        """A copy with the saved state must go on with the same rows."""
        if self.config.instances is not None:
            return Check("state", UNKNOWN, "it needs a second environment (env.instances = 1)")
        name, env, copy = "state", self.make(resumable=True), self.make(resumable=True)
        again = "a resumed run opens new episodes there"
        try:
            walk = walk_rows(env, seed=_SEED, steps=2 * _STATE_STEPS, seconds=self.seconds)
            state = env.state_dict()
            if env.inexact is not None:
                verdict = UNKNOWN if self.config.backend == "envpool" else FINDING
                return Check(name, verdict, f"{env.inexact}; {again}")
            if reasons := copy.load_state_dict(state):
                return Check(name, FINDING, f"{reasons[0]}; {again}")
            given: dict[str, Any] = {
                "seed": _SEED + 1,
                "steps": _STATE_STEPS,
                "seconds": self.seconds,
            }
            ours, its = (walk_rows(e, last=walk.last, **given) for e in (env, copy))
        except EnvError as e:
            return Check(name, UNKNOWN, f"a run ends: {e}")
        finally:
            _close(env)
            _close(copy)
        if (row := first_difference(ours, its)) is not None:
            text = f"a copy with the saved state gives another row {row} steps later"
            fix = "keep all state in attributes, or define state_dict() and load_state_dict()"
            return Check(name, FINDING, f"{text}; {fix}")
        if not ours.steps:
            return Check(name, UNKNOWN, "no step was made")
        return Check(name, OK, f"saved and restored exactly, {ours.steps} rows compared")


def _determinism(one: RowsWalk, two: RowsWalk) -> Check:
    if (row := first_difference(one, two)) is not None:
        text = f"two copies with the same seed and actions differ at row {row}"
        fix = "draw from self.np_random only, which reset(seed=...) seeds, and share nothing"
        return Check("determinism", FINDING, f"{text}; {fix}")
    if not (steps := min(one.steps, two.steps)):
        return Check("determinism", UNKNOWN, "no step was made")
    return Check("determinism", OK, f"two copies with one seed have the same {steps} rows")


def first_difference(one: RowsWalk, two: RowsWalk) -> int | None:
    """Return the first row, counted from the reset, in which two walks differ."""
    count = min(len(one.hashes), len(two.hashes))
    differs = np.zeros(count, np.bool_)
    for a, b in ((one.hashes, two.hashes), (one.reward, two.reward), (one.ended, two.ended)):
        differs |= (a[:count] != b[:count]).any(axis=1)
    return int(differs.argmax()) if differs.any() else None


def _action_taken(one: RowsWalk, other: RowsWalk) -> int | None:
    """Return the first row after an end whose observation is another under another action."""
    count = min(len(one.hashes), len(other.hashes))
    for column in range(one.ended.shape[1]):
        ends = np.flatnonzero(one.ended[: count - 1, column])
        if ends.size and one.hashes[ends[0] + 1, column] != other.hashes[ends[0] + 1, column]:
            return int(ends[0] + 1)
    return None


def _shortened(walk: RowsWalk, limit: int | None) -> str | None:
    """Describe truncated episodes that lack a row: their reset took the place of the last one."""
    if limit is None or limit < 2:
        return None
    lengths: set[int] = set()
    for column in range(walk.truncated.shape[1]):
        starts = np.flatnonzero(walk.first[:, column])
        for end in np.flatnonzero(walk.truncated[:, column]):
            start = starts[starts <= end].max(initial=0)
            if start:  # the first episode has all of its rows
                lengths.add(int(end - start))
    if lengths == {limit - 1}:
        return f"truncated episodes have {limit - 1} steps, the limit is {limit}"
    return None


def _last_row(rows: Env, episode: Episode, seed: int) -> bool | None:
    """True: the last row of an episode is that of ``rows``; None: an earlier row differs."""
    start = np.asarray(getattr(rows.action_space, "start", 0))
    seen = [row_hashes(rows.reset(seed=seed), 1)[0]]
    for action in episode.actions:
        s = rows.step((np.asarray(action) - start)[None])
        seen.append(row_hashes(s.obs, 1)[0])
    if seen[:-1] != episode.hashes[:-1] or len(set(episode.hashes)) == 1:
        return None
    return bool(seen[-1] == episode.hashes[-1])


def _close(env: Any) -> None:
    with faults_ignored():  # what close() raises is not what is examined
        env.close()
