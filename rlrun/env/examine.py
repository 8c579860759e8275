"""``rlrun doctor env=NAME``: what can be checked of an environment from outside.

Random actions, a few thousand steps, in two views: the single environment before anything validates
it, and the rows that a run gets from the configured backend. A check that finds something says what
to do; one that cannot be made says why. None of them proves an environment right.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rlrun.env.adapter import make_env, make_one_env, probe_agents
from rlrun.env.agents import PREFIX
from rlrun.env.contract import faults_ignored
from rlrun.env.examine_single import (
    FINDING,
    LATE,
    NO_END,
    OK,
    REPLAYS,
    UNKNOWN,
    Check,
    Episode,
    Limits,
    RowsWalk,
    contract_checks,
    final_observation_check,
    first_episode,
    limit_check,
    row_hashes,
    walk_rows,
    walk_single,
)
from rlrun.env.rows import Env
from rlrun.errors import EnvError
from rlrun.schema import AgentsConfig, EnvConfig

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
