"""Checks of an environment from outside, for ``rlrun doctor env=NAME``.

They take a few thousand random steps of two kinds: of the single environment before anything
validates it, and of the rows that a run gets from the configured backend. A check returns what it
saw, or raises ``Finding`` with what to do, or ``NotCheckable`` with the reason. No check proves
that an environment is right.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RepeatAction, TimeLimit

from rlrun.env.adapter import make_env, make_one_env, probe
from rlrun.env.agents import PREFIX
from rlrun.env.catalog import find_spec
from rlrun.env.contract import (
    ObservationValidator,
    exception_text,
    faults_ignored,
    pass_ctrl_c,
    row_violation,
)
from rlrun.env.rows import Env
from rlrun.env.state import row_hash
from rlrun.env.wrappers import MaxAndSkip
from rlrun.errors import EnvError
from rlrun.functional.masks import MASK, allowed_actions, has_mask
from rlrun.schema import AgentsConfig, EnvConfig
from rlrun.spaces import tree_leaves, tree_map

AnyEnv = gym.Env[Any, Any]
MakeEnv = Callable[[], AnyEnv]
OK, FINDING, UNKNOWN = "ok", "finding", "not checkable"
REPLAYS = 3  # episodes that are repeated up to their last step
FEW = 3  # least steps, however long they take
WAITS = 10  # most real seconds of a walk per CPU second
_SEED, _NUM_ENVS = 20_261, 2
_ENDLESS = 1000  # steps without an end that are a finding
_SINGLE_STEPS, _ROWS_STEPS, _STATE_STEPS, _REPLAY_STEPS = 2000, 200, 30, 300
_SHARES, _REPLAY_SECONDS = 6, 0.3  # number of long walks; seconds of a short one
_FEW_STARTS = 5  # fewest episodes whose starts show a range
_LOST_SHARE = 1e-3  # rounding error, in standard deviations, that loses digits
_LIMITS = (  # attributes that name a limit
    *("max_steps", "max_episode_steps", "_max_episode_steps", "time_limit", "horizon"),
    *("episode_length", "max_cycles", "episode_limit"),
)
_NO_STEP = "no step was made"
_NO_SINGLE = "this backend has no single environments; its rows are validated as they come"
_FIX = "a run would end with exit code 3; fix the environment or wrap it"
_TRUNCATE = "return truncated=True and terminated=False if only the time is over"
_NO_RESET = "step() must not reset: return the final observation, rlrun calls reset()"
_MODE = (
    'a NEXT_STEP environment resets there and ignores the action; state its metadata["autoreset_'
    'mode"], or set env.backend=sync'
)


class Finding(Exception):
    """A problem that a check has found, and what to do about it."""


class NotCheckable(Exception):
    """The reason why a check cannot be made."""


@dataclass(frozen=True, slots=True)
class Check:
    """The verdict of one check. ``text``: what was seen, what to do, or why it cannot be made."""

    name: str
    verdict: str  # OK, FINDING or UNKNOWN
    text: str


def _verdicts(checks: object, *names: str) -> Iterator[Check]:
    """Yield the verdicts of methods of ``checks`` by their names, except those that return None."""
    for name in names:
        verdict = OK
        try:
            text = getattr(checks, name.replace(" ", "_"))()
        except Finding as e:
            verdict, text = FINDING, str(e)
        except NotCheckable as e:
            verdict, text = UNKNOWN, str(e)
        if text is not None:
            yield Check(name, verdict, text)


def examine(
    config: EnvConfig, agents: AgentsConfig | None, *, seconds: float = 5.0
) -> Iterator[Check]:
    """Yield the verdict of every check.

    ``seconds``: approximate time for all checks; a slow environment makes fewer steps.

    Raises: ConfigError if the environment cannot be made.
    """
    rows = _Rows(config, agents, seconds / _SHARES)
    probe(config, agents)  # raises before any check is shown
    rows.make().close()
    several = config.backend == "envpool" or config.id.startswith(PREFIX)
    if several or find_spec(config.id).entry_point is None:
        for name in ("spaces", "reward", "flags", "time limit", "final observation"):
            yield Check(name, UNKNOWN, _NO_SINGLE)
    else:
        single = _Single(partial(make_one_env, config, validate=False), rows.seconds)
        contract = [*_verdicts(single, "spaces", "reward", "flags", "precision", MASK)]
        yield from contract
        yield from _verdicts(single, "time limit", "final observation")
        rows.refused = any(check.verdict == FINDING for check in contract)
        rows.limit = single.limit
        native = config.backend in ("auto", "vector") and not config.wrappers
        rows.single = single.make if native and config.instances is None else None  # two at once
    yield from _verdicts(rows, "determinism", "step after the end", "state")


@contextmanager
def _opened(make: Callable[[], Any]) -> Iterator[Any]:
    """Provide an environment within the block. Errors of its close() are ignored."""
    env = make()
    try:
        yield env
    finally:
        with faults_ignored():
            env.close()


class Actions:
    """Random actions of a space, restricted to allowed ones if the observation has a mask."""

    def __init__(self, action: gym.Space[Any], obs: gym.Space[Any], seed: int) -> None:
        self._space: Any = deepcopy(action)
        self._space.seed(seed)
        self._masked = has_mask(obs) and isinstance(action, gym.spaces.Discrete)
        self._start = getattr(action, "start", 0)

    def __call__(self, obs: Any) -> Any:
        """Return an action for one environment with observation ``obs``."""
        if not self._masked:
            return self._space.sample()
        allowed = allowed_actions({MASK: np.asarray(obs[MASK])})
        return self._space.sample(np.asarray(allowed, np.int8))

    def batch(self, obs: Any, num_envs: int) -> np.ndarray:
        """Return actions [E, *A] of all environments, counted from 0."""
        sampled = [self(tree_map(lambda x, i=i: x[i], obs)) for i in range(num_envs)]
        actions: np.ndarray = np.stack(sampled) - np.asarray(self._start)
        return actions


# -- a single environment --------------------------------------------------------------------------


@dataclass
class Episode:
    """An episode of a single environment."""

    obs: list[Any] = field(default_factory=list)  # length + 1, the last is the final one
    hashes: list[str] = field(default_factory=list)  # of the observations
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
    """Episodes of a single environment. A violation of the contract ends the walk."""

    validator: ObservationValidator
    episodes: list[Episode] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    violation: tuple[str, str] | None = None  # observation, reward, flags or exception; the text
    outside: str | None = None  # the first float beyond the bounds of its space
    late: bool = False  # the time ended before all steps were made

    @property
    def steps(self) -> int:
        return sum(episode.length for episode in self.episodes)

    @property
    def ended(self) -> list[Episode]:
        return [episode for episode in self.episodes if episode.ended]

    def require_ended(self) -> list[Episode]:
        """Return the episodes that have ended, or raise NotCheckable."""
        if not self.ended:
            raise NotCheckable(_no_end(self.steps, late=self.late))
        return self.ended

    def record(self, call: str, result: Any) -> None:
        """Add the result of reset(), or of step() in the last episode, or its violation."""
        self.violation = row_violation(call, result, self.validator)
        if self.violation is not None:
            return
        self.outside = self.outside or self.validator.floats_violation(result[0])
        if call == "reset":
            self.episodes.append(Episode())
        episode = self.episodes[-1]
        if call == "step":
            self.rewards.append(float(result[1]))
            episode.terminated, episode.truncated = map(bool, result[2:4])
        episode.obs.append(tree_map(np.array, result[0]))
        episode.hashes.append(row_hash(result[0]))


def _no_end(steps: int, *, late: bool) -> str:
    """Return why nothing can be said about ends."""
    if late:
        return f"no episode ended within the {steps} steps that the time allowed"
    fix = "env.max_episode_steps=100 makes them end"
    return f"no episode ended within the {steps} steps of this check; {fix}"


def walk_single(
    env: AnyEnv, *, seed: int, steps: int, seconds: float, episodes: int | None = None
) -> SingleWalk:
    """Return a walk of ``steps`` random steps, or of ``episodes``.

    After ``seconds`` of CPU time, which a busy machine does not shorten, or ``WAITS`` times as long
    in real time, it ends earlier, but not before FEW steps.
    """
    walk = SingleWalk(ObservationValidator(env.observation_space, floats=False))
    busy, deadline = time.thread_time(), time.monotonic() + WAITS * seconds
    actions = Actions(env.action_space, env.observation_space, seed)
    try:
        walk.record("reset", env.reset(seed=seed))
        while walk.violation is None and walk.steps < steps:
            late = time.thread_time() - busy > seconds or time.monotonic() > deadline
            walk.late = late and walk.steps >= FEW
            episode = walk.episodes[-1]
            if walk.late or (episode.ended and len(walk.episodes) == episodes):
                break
            if episode.ended:
                walk.record("reset", env.reset())
            else:
                episode.actions.append(actions(episode.obs[-1]))
                walk.record("step", env.step(episode.actions[-1]))
    except BaseException as e:
        pass_ctrl_c(e)
        walk.violation = "exception", exception_text(e, "reset or step").partition(";")[0]
    return walk


def _first_episode(env: AnyEnv, seed: int) -> Episode | None:
    """Return the first episode after a reset with ``seed``, or None if it does not end."""
    walk = walk_single(env, seed=seed, steps=_REPLAY_STEPS, seconds=_REPLAY_SECONDS, episodes=1)
    return walk.ended[0] if walk.ended else None


class _Single:
    """Checks of a single environment."""

    def __init__(self, make: MakeEnv, seconds: float) -> None:
        self.make = make
        with _opened(make) as env:
            self.limit, self.masked = _registered_limit(env), has_mask(env.observation_space)
            named = {getattr(env.unwrapped, name, None): name for name in reversed(_LIMITS)}
            self.walk = walk_single(env, seed=_SEED, steps=_SINGLE_STEPS, seconds=seconds)
        self.named_limits = {x: name for x, name in named.items() if isinstance(x, int)}

    def _refuse(self, *kinds: str) -> None:
        """Raise Finding if the walk ended with a violation of one of ``kinds``."""
        kind, text = self.walk.violation or ("", "")
        if kind in kinds:
            raise Finding(f"after {self.walk.steps} steps: {text}; {_FIX}")

    def spaces(self) -> str:
        walk = self.walk
        self._refuse("exception", "observation")
        if walk.outside is not None:
            fix = "it is passed on, but declare wider bounds: wrappers compute with them"
            raise Finding(f"{walk.outside}; {fix}")
        if not walk.steps:
            raise NotCheckable(_NO_STEP)
        count = f"{walk.steps} steps, {len(walk.ended)} ended episodes"
        return f"observations in their space, no action refused; {count}"

    def reward(self) -> str:
        self._refuse("reward")
        if not (rewards := self.walk.rewards):
            raise NotCheckable(_NO_STEP)
        return f"finite, {min(rewards):g} to {max(rewards):g} per step"

    def flags(self) -> str:
        self._refuse("flags")
        ended = self.walk.require_ended()
        # At its limit Gymnasium truncates, whatever the environment says of that step.
        both = sum(e.terminated and e.truncated and e.length != self.limit for e in ended)
        if both > 1 and 2 * both > len(ended):
            text = f"terminated and truncated are both True at {both} of {len(ended)} ends"
            raise Finding(f"{text}, which counts as terminated (no value); {_TRUNCATE}")
        terminated = sum(e.terminated for e in ended)
        return f"{terminated} episodes terminated, {len(ended) - terminated} truncated"

    def precision(self) -> None:
        """Find a number whose changes are lost in float32, which networks read."""
        rows = [tree_leaves(obs) for episode in self.walk.episodes for obs in episode.obs]
        for i, column in enumerate(zip(*rows, strict=True)):
            x = np.asarray(column[0])
            if x.dtype.kind not in "fiu" or x.dtype.itemsize < 4 or x.dtype == np.float32:
                continue
            values = np.stack(column).astype(np.float64)
            error = np.abs(values - values.astype(np.float32)).max(0)
            lost = (error > _LOST_SHARE * values.std(0)) & (np.ptp(values, 0) > 0)
            if lost.any():
                place = tuple(int(k) for k in np.argwhere(lost)[0])
                name = f"leaf {i}, position {list(place)}" if place else f"leaf {i}"
                low, high = values.min(0)[place], values.max(0)[place]
                raise Finding(
                    f"observation ({name}) is {low:.17g} to {high:.17g}, of which float32 loses up "
                    f"to {error[place]:.2g}, and networks read float32; observe differences, or "
                    "use policy.normalize_obs=true (ppo, a2c, impala), which subtracts the mean"
                )

    def action_mask(self) -> str | None:
        """Check that an open episode has an allowed action at every step."""
        shares = []
        for number, episode in enumerate(self.walk.episodes if self.masked else ()):
            for t, obs in enumerate(episode.obs[: episode.length]):
                if not np.any(obs[MASK]):
                    raise Finding(
                        f"no action is allowed at step {t} of episode {number}, so all count as "
                        "allowed; end the episode, or allow one that does nothing"
                    )
                shares.append(np.mean(obs[MASK] == 0))
        if not shares:
            return None
        return f"an action is always allowed, {np.mean(shares):.0%} of them are forbidden"

    def time_limit(self) -> str:
        """Check that a time limit truncates: the value of the last observation still counts."""
        ended, limit = self.walk.ended, self.limit
        if limit is None and not ended and self.walk.steps >= _ENDLESS and not self.walk.violation:
            text = f"no episode ended within {self.walk.steps} steps and no limit is registered"
            raise Finding(f"{text}: an evaluation would not end; set env.max_episode_steps=N")
        if limit is None:
            ended = self.walk.require_ended()
        lost = f"their last value would be 0; {_TRUNCATE}"
        at_limit = [e for e in ended if e.length == limit]
        if len(at_limit) > 1 and all(e.terminated for e in at_limit):
            text = f"all {len(at_limit)} episodes of {limit} steps, the registered limit,"
            raise Finding(f"{text} terminated: {lost}")
        lengths = {e.length if e.terminated else None for e in ended}
        if len(ended) > 2 and len(lengths) == 1 and (only := ended[0].length) in lengths:
            text = f"all {len(ended)} episodes terminated after {only} steps"
            if only in self.named_limits:
                raise Finding(f"{text}, its {self.named_limits[only]}: {lost}")
            if only > 1:
                raise NotCheckable(f"{text}: the task's own end? If it is a limit, {_TRUNCATE}")
        if truncated := sum(e.truncated and not e.terminated for e in ended):
            return f"{truncated} of {len(ended)} episodes were truncated"
        if limit is None:
            text = "no episode was truncated and no limit is registered: an evaluation episode "
            text += "that never ends takes eval.max_episode_steps; set env.max_episode_steps=N"
            raise NotCheckable(text)
        return f"Gymnasium truncates after {limit} steps; no random episode was that long"

    def final_observation(self) -> str:
        """Check that the observation of an episode's last step is not that of a reset.

        It is compared with the first observation of the next episode, with the result of a reset in
        place of the last step (which an environment that resets itself in ``step`` returns), and
        with the places where episodes start.
        """
        ended, episodes = self.walk.require_ended(), self.walk.episodes
        if all(len(set(episode.hashes)) == 1 for episode in ended):
            raise NotCheckable("observations do not change within episodes")
        pairs = [a.hashes[-1] == b.hashes[0] for a, b in pairwise(episodes)]
        repeated = [_ends_in_reset(self.make, _SEED + 1 + n) for n in range(REPLAYS)]
        several = len(ended) >= _FEW_STARTS and not self.walk.violation
        if len(pairs) > 1 and all(pairs):
            text = f"in all {len(pairs)} episodes it is the first one of the next episode"
        elif (known := repeated.count(True)) > 1 and False not in repeated:
            text = f"in {known} episodes it is what reset() returns in place of the last step"
        elif several and _ends_where_episodes_start(ended):
            text = f"in all {len(ended)} episodes it lies among the first ones, and the one before"
            text += " it does not, as after a reset"
        else:
            return f"not that of a reset, {len(ended)} episodes"
        raise Finding(f"{text}; {_NO_RESET}")


def _registered_limit(env: AnyEnv) -> int | None:
    """Return the steps after which Gymnasium truncates, if a row is one step of ``env``."""
    limit: int | None = None
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            limit = env._max_episode_steps
        elif isinstance(env, RepeatAction | MaxAndSkip):
            break
        env = env.env
    return limit


def _ends_where_episodes_start(ended: Sequence[Episode]) -> bool:
    """Return whether all last observations lie among the first ones, and those before hardly ever.

    An observation lies among the first ones if it is nearer to one of another episode than twice
    the largest such distance among the first ones, in standard deviations of each number.
    """

    def numbers(obs: Any) -> np.ndarray:
        return np.concatenate([np.ravel(x) for x in tree_leaves(obs)])

    of = (np.array([numbers(e.obs[i]) for e in ended], float) for i in (0, -2, -1))  # [n, d] each
    starts, before, finals = of
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


def _ends_in_reset(make: MakeEnv, seed: int) -> bool | None:
    """Return whether an episode ends with the result of a reset in place of its last step.

    None: no episode ended. False if a reset in place of the step before gives the same, because
    then all observations are random.
    """
    with _opened(make) as env:
        episode = _first_episode(env, seed)
        if episode is None or episode.length < 2:
            return None
        same = []
        try:
            for t in (episode.length - 1, episode.length):
                env.reset(seed=seed)
                for action in episode.actions[: t - 1]:
                    env.step(action)
                same.append(row_hash(env.reset()[0]) == episode.hashes[t])
        except BaseException as e:  # the walk reports it as a finding
            pass_ctrl_c(e)
            return None
    return same == [False, True]


# -- rows ------------------------------------------------------------------------------------------


class RowsWalk(NamedTuple):
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
    """Return ``steps`` rows of random actions, fewer after ``seconds``, but not less than FEW.

    ``other_after_end``: use other actions in the step after an episode's end, which a NEXT_STEP
    environment ignores. ``last``: the observation from which to continue without a reset.

    Raises: EnvError if the environment violates its contract.
    """
    count, deadline = env.num_envs, time.monotonic() + seconds
    actions, other_actions = (Actions(env.action_space, env.obs_space, seed + i) for i in (0, 1))
    obs = env.reset(seed=seed) if last is None else last
    done = np.zeros(count, np.bool_)
    rows = [(_row_hashes(obs, count), np.zeros(count, np.float32), done, done, ~done)]
    while len(rows) <= steps and (len(rows) <= FEW or time.monotonic() <= deadline):
        action = actions.batch(obs, count)
        if other_after_end and done.any():
            ignored = other_actions.batch(obs, count)
            action = np.where(done.reshape(-1, *[1] * (action.ndim - 1)), ignored, action)
        s = env.step(action)
        obs, done = s.obs, s.terminated | s.truncated
        flags = s.truncated.copy(), s.first.copy()
        rows.append((_row_hashes(obs, count), s.reward.copy(), done, *flags))
    hashes, reward, ended, truncated, first = map(np.stack, zip(*rows, strict=True))
    return RowsWalk(hashes, reward, ended, truncated, first, tree_map(np.array, obs))


def _row_hashes(obs: Any, count: int) -> np.ndarray:
    """Return the hashes [E] of the observations of E environments."""
    return np.array([row_hash(tree_map(lambda x, i=i: x[i], obs)) for i in range(count)])


class _Rows:
    """Checks of the rows of an environment."""

    limit: int | None  # steps after which an episode is truncated
    single: MakeEnv | None = None  # the single environment; None: the rows are made of it
    refused = False  # an earlier check has found the fault

    def __init__(self, config: EnvConfig, agents: AgentsConfig | None, seconds: float) -> None:
        # No walk goes on after a restart: its rows would be those of another episode.
        self.config = replace(config, on_worker_failure="stop")
        self.agents, self.seconds, self.limit = agents, seconds, config.max_episode_steps

    def make(self, *, num_envs: int = _NUM_ENVS, resumable: bool = False) -> Env:
        return make_env(
            self.config,
            num_envs=min(num_envs, self.config.instances or num_envs),
            keep_info=(self.config.success,) if self.config.success else (),
            agents=self.agents,
            resumable=resumable,
        )

    def walk(self, **options: Any) -> RowsWalk:
        with _opened(self.make) as env:
            return walk_rows(env, seed=_SEED, steps=_ROWS_STEPS, seconds=self.seconds, **options)

    def determinism(self) -> str:
        self.walks: list[RowsWalk] = []  # with the same actions, and with others after an end
        try:
            one, two = self.walk(), self.walk()
            ends = bool(one.ended[:-1].any())
            altered = self.walk(other_after_end=True) if ends else one
        except EnvError as e:
            raise (NotCheckable if self.refused else Finding)(f"a run ends: {e}") from e
        self.walks = [one, altered]
        self.same = first_difference(one, two) is None
        if not self.same:
            text = "two copies with the same seed and actions differ at row "
            fix = "draw from self.np_random only, which reset(seed=...) seeds, and share nothing"
            raise Finding(f"{text}{first_difference(one, two)}; {fix}")
        if not (steps := min(one.steps, two.steps)):
            raise NotCheckable(_NO_STEP)
        return f"two copies with one seed have the same {steps} rows"

    def step_after_the_end(self) -> str:
        if not self.walks:
            raise NotCheckable("a run ends earlier")
        walk, altered = self.walks
        opens = walk.ended[:-1]  # the next row opens an episode
        if not opens.any():
            raise NotCheckable(_no_end(walk.steps, late=walk.steps < _ROWS_STEPS))
        # Columns of agents wait, in rows that end, until the last agent of a team has left.
        columns_wait = walk.ended.shape[1] != (self.config.instances or _NUM_ENVS)
        if (walk.reward[1:][opens] != 0).any():
            raise Finding(f"the row that opens an episode has a reward; {_MODE}")
        if not columns_wait and walk.ended[1:][opens].any():
            raise Finding(f"an episode ends in the row that opens it; {_MODE}")
        if (message := _shortened(walk, self.limit) or self._other_last_row()) is not None:
            raise Finding(f"{message}; {_MODE}")
        if not self.same:
            raise NotCheckable("rows of one seed differ, see determinism")
        for column, ended in enumerate(opens[: len(altered.hashes) - 1].T):
            row = int(ended.argmax()) + 1
            if ended.any() and walk.hashes[row, column] != altered.hashes[row, column]:
                raise Finding(f"the observation of row {row} depends on the action; {_MODE}")
        return f"{int(opens.sum())} resets: no reward, no flag, the action ignored"

    def _other_last_row(self) -> str | None:
        """Describe a last row that differs from the single environment's, or return None.

        Only compared if the rows before it are equal: random numbers may be others.
        """
        if self.single is None:
            return None
        with _opened(self.single) as single, _opened(partial(self.make, num_envs=1)) as rows:
            if rows.num_envs > 1:
                return None
            try:
                seeds = range(_SEED, _SEED + REPLAYS)
                repeated = [_last_row(rows, _first_episode(single, seed), seed) for seed in seeds]
            except EnvError:
                return None
        if repeated.count(False) > 1 and True not in repeated:
            return "the last row of an episode is not that of the single environment"
        return None

    def state(self) -> str:
        """Check that a copy with the saved state continues with the same rows."""
        if self.config.instances is not None:
            raise NotCheckable("it needs a second environment (env.instances = 1)")
        make, again = partial(self.make, resumable=True), "a resumed run opens new episodes there"
        with _opened(make) as env, _opened(make) as copy:
            options: dict[str, Any] = {"seconds": self.seconds}
            try:
                walk = walk_rows(env, seed=_SEED, steps=2 * _STATE_STEPS, **options)
                state = env.state_dict()
                if env.inexact is not None:
                    unknown = self.config.backend == "envpool"
                    raise (NotCheckable if unknown else Finding)(f"{env.inexact}; {again}")
                if reasons := copy.load_state_dict(state):
                    raise Finding(f"{reasons[0]}; {again}")
                options |= {"seed": _SEED + 1, "steps": _STATE_STEPS, "last": walk.last}
                ours, its = (walk_rows(e, **options) for e in (env, copy))
            except EnvError as e:
                raise NotCheckable(f"a run ends: {e}") from e
        if (row := first_difference(ours, its)) is not None:
            text = f"a copy with the saved state gives another row {row} steps later"
            fix = "keep all state in attributes, or define state_dict() and load_state_dict()"
            raise Finding(f"{text}; {fix}")
        if not ours.steps:
            raise NotCheckable(_NO_STEP)
        return f"saved and restored exactly, {ours.steps} rows compared"


def first_difference(one: RowsWalk, two: RowsWalk) -> int | None:
    """Return the first row, counted from the reset, in which two walks differ."""
    count = min(len(one.hashes), len(two.hashes))
    differs = np.zeros(count, np.bool_)
    for a, b in zip(one[:3], two[:3], strict=True):  # hashes, reward, ended
        differs |= (a[:count] != b[:count]).any(axis=1)
    return int(differs.argmax()) if differs.any() else None


def _shortened(walk: RowsWalk, limit: int | None) -> str | None:
    """Describe truncated episodes that lack a row because their reset replaced the last one."""
    if limit is None or limit < 2:
        return None
    row = np.arange(len(walk.first))[:, None]
    start = np.maximum.accumulate(np.where(walk.first, row, 0))
    later = walk.truncated & (start > 0)  # the first episode has all of its rows
    if set((row - start)[later].tolist()) == {limit - 1}:
        return f"truncated episodes have {limit - 1} steps, the limit is {limit}"
    return None


def _last_row(rows: Env, episode: Episode | None, seed: int) -> bool | None:
    """Return whether ``rows`` has the last row of an episode; None: an earlier one differs."""
    if episode is None or len(set(episode.hashes)) == 1:
        return None
    start = np.asarray(getattr(rows.action_space, "start", 0))
    seen = [_row_hashes(rows.reset(seed=seed), 1)[0]]
    for action in episode.actions:
        s = rows.step((np.asarray(action) - start)[None])
        seen.append(_row_hashes(s.obs, 1)[0])
    return bool(seen[-1] == episode.hashes[-1]) if seen[:-1] == episode.hashes[:-1] else None
