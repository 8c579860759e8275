"""Evaluation: greedy episodes in separate environments with fixed seeds.

``rlrun.pipeline.parts`` decides when to evaluate.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.env import make_env
from rlrun.env.framestack import make_frame_stack
from rlrun.env.rows import Env, Step
from rlrun.env.state import tree_hash
from rlrun.errors import ConfigError, EnvError, ResourceError, StorageError
from rlrun.log import Log
from rlrun.pipeline.collector import Collector
from rlrun.pipeline.state import remember_streams
from rlrun.policy.actor import Reading, RecordingActor
from rlrun.policy.compute import flushed
from rlrun.run.files import replace_file
from rlrun.schema import AgentsConfig, Config, EnvConfig
from rlrun.types import Actor, Policy, no_actions
from rlrun.video.files import encode_gif, enlarged, reduced

_logger = logging.getLogger(__name__)

Stop = Callable[[], bool]
"""Whether to stop now"""

Compiled = Callable[[Env, Any], Any]
"""Returns what plays a policy's rows in compiled code, or None; see ``kernels/episodes.py``"""


@dataclass(frozen=True, slots=True)
class WatchedRow:
    """A row of environment 0: its picture before the action, and the policy's outputs for it."""

    picture: np.ndarray  # uint8 [H, W, 3]
    episode: int  # from 0
    t: int  # steps since the episode began
    reward: float  # of the step that led here, 0 at the start
    total: float  # return so far
    reading: Reading | None  # None: the episode is over


@dataclass(slots=True)
class Watch:
    """Passes each row of column 0 to ``show``: T + 1 rows for an episode of T steps.

    ``ended`` (number, return, length, cut=...) is called after each episode. ``episodes`` lists
    their (return, length). ``stride``: steps between two pictures; the last row of an episode
    always has one.
    """

    show: Callable[[WatchedRow], None]
    ended: Callable[..., None] = lambda *result, cut: None
    episodes: list[tuple[float, int]] = field(default_factory=list)
    stride: int = 1
    _pending: tuple[np.ndarray, float] | None = None  # picture and reward of the next row
    _t: int = 0
    _total: float = 0.0

    def wrap(self, actor: Actor) -> Actor:
        """Return an actor that records the outputs of ``actor``."""
        return RecordingActor(actor, self._acted)

    def began(self, env: Env) -> None:
        """Note that all environments were reset."""
        self.episodes, self._t, self._total = [], 0, 0.0
        self._pending = env.render(), 0.0

    def stepped(self, env: Env, step: Step, *, over: bool) -> None:
        """Note a step. ``over``: the episode of column 0 has ended or is cut here."""
        if step.first[0]:
            self._t, self._total, self._pending = 0, 0.0, (env.render(), 0.0)
            return
        reward = float(step.reward[0])
        self._t, self._total = self._t + 1, self._total + reward
        if over or self._t % self.stride == 0:
            self._pending = env.render(), reward
        if over:
            self._emit(None)
            cut = not (step.terminated[0] or step.truncated[0])
            self.ended(len(self.episodes), self._total, self._t, cut=cut)
            self.episodes.append((self._total, self._t))

    def _acted(self, reading: Reading) -> None:
        if self._pending is not None:
            self._emit(reading)

    def _emit(self, reading: Reading | None) -> None:
        assert self._pending is not None
        picture, reward = self._pending
        self._pending = None
        self.show(WatchedRow(picture, len(self.episodes), self._t, reward, self._total, reading))


MAX_LOST = 10  # successive episodes of an environment lost by restarts
LONG = 10_000  # steps of an episode that are worth a warning
MAX_ENVS = 50  # evaluation environments stepped in lock-step


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Undiscounted raw returns of ``episodes`` greedy episodes at ``env_steps`` of training.

    If agents have columns of their own, every agent has an entry for every episode.
    """

    returns: np.ndarray  # float64 [episodes]
    lengths: np.ndarray  # int64 [episodes]
    success: np.ndarray | None  # float64 [episodes], where the environment reports it
    env_steps: int
    cut: int = 0  # episodes that did not end: they were cut after eval.max_episode_steps
    restarted: int = 0  # episodes that a restart of their environment cut; others replace them
    inexact: str | None = None  # why another evaluation of these weights may differ

    def summary(self) -> dict[str, float]:
        """Return the statistics written to run.json."""
        r = self.returns
        out = {
            "return_mean": float(r.mean()),
            "return_median": float(np.median(r)),
            "return_std": float(r.std()),
            "return_min": float(r.min()),
            "return_max": float(r.max()),
            "length_mean": float(self.lengths.mean()),
            "episodes": len(r),
            "env_steps": self.env_steps,
        }
        if self.success is not None:
            out["success"] = float(self.success.mean())
        if self.cut:
            out["cut_episodes"] = self.cut
        if self.restarted:
            out["restarted_episodes"] = self.restarted
        return out


class EpisodeCounts:
    """The open episodes of an evaluation, and the results of the finished ones.

    A cut episode counts, and its column plays no further ones. An episode lost by a restart of its
    environment does not count; its column plays another.
    """

    def __init__(self, episodes: np.ndarray) -> None:
        """``episodes`` [E]: the number of episodes that count in each column."""
        columns = len(episodes)
        self.left, self.played = episodes.copy(), np.zeros(columns, np.int64)
        self.total, self.length = np.zeros(columns), np.zeros(columns, np.int64)
        self.ended = np.zeros(columns, bool)  # the next row is an end row
        self.results: list[
            tuple[int, int, float, int, float]
        ] = []  # number, column, return, length ...
        self.cut = self.lost = 0
        self.lost_in_a_row = np.zeros(columns, np.int64)

    def add(self, step: Step, success: str | None, longest: int | None) -> np.ndarray:
        """Count a step. Return the columns [E] whose episode ended or was cut.

        ``success``: key of the infos. ``longest``: steps after which episodes are cut; None: never.
        """
        if step.restarted is not None:
            self._lose(step.restarted)
        valid = ~self.ended
        self.total += step.reward  # 0 where no action was taken, see ``Step``
        self.length += valid
        ended: np.ndarray = step.terminated | step.truncated
        over = ended
        if longest is not None:
            over = ended | (self.length >= longest)
        for i in np.flatnonzero(valid & over & (self.left > 0)):
            solved = float(step.info[success][i]) if success else 0.0
            self.count(int(i), float(self.total[i]), int(self.length[i]), solved)
            if not ended[i]:
                self.cut, self.left[i] = self.cut + 1, 0
        self.total[ended], self.length[ended], self.lost_in_a_row[ended] = 0, 0, 0
        self.ended = ended
        return over

    def count(self, column: int, score: float, length: int, solved: float = 0.0) -> None:
        """Count an episode, unless the column has played all of its own."""
        if self.left[column] > 0:
            self.results.append((int(self.played[column]), column, score, length, solved))
            self.played[column], self.left[column] = self.played[column] + 1, self.left[column] - 1

    def _lose(self, restarted: np.ndarray) -> None:
        """Drop the open episodes of the columns ``restarted`` [E], in which no action was taken.

        Raises: EnvError if a column lost ``MAX_LOST`` episodes in a row.
        """
        lost = restarted & ~self.ended & (self.left > 0)
        self.lost, self.lost_in_a_row = self.lost + int(lost.sum()), self.lost_in_a_row + lost
        if self.lost_in_a_row.max() >= MAX_LOST:
            raise EnvError(
                "env.on_worker_failure = restart: evaluation environment "
                f"{self.lost_in_a_row.argmax()} was restarted in each of {MAX_LOST} episodes in a "
                "row; an episode must end; fix the environment (env.backend=sync shows the "
                "error), or raise env.worker_seconds"
            )
        self.total[restarted], self.length[restarted] = 0, 0
        self.ended = self.ended | restarted


class Evaluator:
    """Plays evaluation episodes. Every call uses the same seeds."""

    def __init__(
        self,
        config: EnvConfig,
        *,
        episodes: int,
        seed: int,
        max_steps: int,
        agents: AgentsConfig | None = None,
        envs: int = MAX_ENVS,
        render: bool = False,
        env: Env | None = None,
        compiled: Compiled | None = None,
    ) -> None:
        """``max_steps``: eval.max_episode_steps. ``agents`` and ``render`` as in ``make_env``.

        ``compiled``: makes what plays rows in compiled code, which takes half a second to load.
        ``envs``: most environments. ``env``: an existing one, which the caller closes.
        """
        self.max_steps, self.warned, self.warned_of_length = max_steps, False, False
        envs = min(episodes, envs, config.instances or envs)
        self.seed, self.steps = seed, 0  # since the process began, for the watchdog
        self.repeats: str | None = None  # why a reset does not repeat, "": it does; None: not tried
        self.policy: Policy | None = None
        self.actor: Actor | None = None
        self.success = config.success
        keep = (config.success,) if config.success else ()
        self.env = env or make_env(
            config, num_envs=envs, keep_info=keep, evaluate=True, agents=agents, render=render
        )
        self.num_envs = self.env.num_envs
        counts = np.arange(envs) < episodes % envs  # environments that play one more
        self.episodes = np.repeat(episodes // envs + counts, self.num_envs // envs)  # of columns
        self.stack = make_frame_stack(config.frame_stack, self.env.obs_space, self.num_envs)
        self.compile = None if self.stack is not None or keep else compiled
        self.compiled: Any = None

    def run(self, policy: Policy, *, env_steps: int, watch: Watch | None = None) -> Evaluation:
        """Play all episodes to their ends and return their results.

        The number of episodes per environment is fixed in advance, because counting whichever
        episodes end first would favour short ones. An episode is cut after ``max_steps``: its
        return so far counts, and its column plays no further ones. An episode lost by a restart of
        its environment (env.on_worker_failure) does not count and is replaced by another.

        Raises: EnvError if an environment is restarted so often that no episode ends.
        """
        evaluation = self.run_until(lambda: False, policy, env_steps=env_steps, watch=watch)
        assert evaluation is not None
        return evaluation

    @flushed()
    def run_until(
        self, stop: Stop, policy: Policy, *, env_steps: int, watch: Watch | None = None
    ) -> Evaluation | None:
        """Run as ``run``, or return None as soon as ``stop()``, called before every step, is true.

        ``watch`` sees the counted episodes of column 0, for a ``render`` evaluator.
        """
        counted = EpisodeCounts(self.episodes)
        began = self.steps
        obs: Any = self.env.reset(seed=self.seed)
        opening = tree_hash(obs) if self.repeats is None else ""
        first = np.ones(self.num_envs, bool)
        reward = np.zeros(self.num_envs, np.float32)
        action = no_actions(self.env.action_space, self.num_envs)
        actor = self._actor(policy)
        state = actor.initial_state()
        if watch is not None:
            actor = watch.wrap(actor)
            watch.began(self.env)
        over = np.zeros(self.num_envs, bool)
        while counted.left.any():
            if over.any():
                self.env.rest(counted.left == 0)
            if stop():
                return None
            if self.compiled is not None and watch is None:
                most = min(LONG, self.max_steps) - 1 - (self.steps - began)
                row = obs, first, action, reward
                row, played = self.compiled.play(actor, row, state, counted, most)
                if played:
                    (obs, first, action, reward), self.steps = row, self.steps + played
                    continue
            stacked = obs if self.stack is None else self.stack.push(obs, first)
            out = actor.act(stacked, first, action, reward, state, explore=None)
            action, state = out.action, out.state
            step, self.steps = self.env.step(action), self.steps + 1
            obs, first, reward = step.obs, step.first, step.reward
            longest = self.max_steps if self.steps - began >= self.max_steps else None
            wanted = counted.left[0] > 0
            over = counted.add(step, self.success, longest)
            if (self.steps - began) % LONG == 0:
                self._warn_of_length(counted, env_steps)
            if watch is not None and wanted:
                watch.stepped(self.env, step, over=bool(over[0]))
        return self._evaluation(counted, opening, env_steps)

    def _warn_of_length(self, counted: EpisodeCounts, env_steps: int) -> None:
        """Say once, while they last, that episodes are long."""
        longest = int(counted.length[counted.left > 0].max(initial=0))
        if longest >= LONG and not self.warned_of_length:
            self.warned_of_length = True
            text = "evaluation at %d env steps: an episode has %d steps and goes on to "
            text += "eval.max_episode_steps = %d; env.max_episode_steps=N ends episodes earlier"
            _logger.warning(text, env_steps, longest, self.max_steps)

    def _evaluation(self, counted: EpisodeCounts, opening: str, env_steps: int) -> Evaluation:
        """Return the results. Warn of cut episodes."""
        if counted.lost:
            text = "evaluation at %d env steps: episodes cut by restarts of their environment: %d"
            text += "; they do not count and are replaced by others"
            _logger.warning(text, env_steps, counted.lost)
        if counted.cut and not self.warned:
            self.warned = True
            text = "%d of %d evaluation episodes did not end within eval.max_episode_steps = %d"
            text += "; their returns so far count; env.max_episode_steps=N ends episodes earlier"
            _logger.warning(text, counted.cut, len(counted.results), self.max_steps)
        _, _, returns, lengths, success = map(np.array, zip(*sorted(counted.results), strict=True))
        return Evaluation(
            returns, lengths, success if self.success else None, env_steps, counted.cut,
            counted.lost, inexact=self.env.inexact if counted.lost else self._carried_over(opening),
        )  # fmt: skip

    def _carried_over(self, opening: str) -> str | None:
        """Return why a second evaluation may differ, tested by a reset, or None.

        ``opening``: hash of the first observations of the first evaluation.
        """
        if self.repeats is None:
            same = tree_hash(self.env.reset(seed=self.seed)) == opening
            self.repeats = "" if same else (
                "a reset with the same seed opens another evaluation: the environment carries "
                "something from one episode to the next"
            )  # fmt: skip
        return self.repeats or None

    def _actor(self, policy: Policy) -> Actor:
        """Return an actor with the policy's present weights. It is reused for the same policy."""
        if self.policy is not policy:
            self.policy, self.actor = policy, policy.actor(self.num_envs)
            has_kernel = getattr(policy, "kernel", None) is not None
            self.compiled = self.compile(self.env, policy) if self.compile and has_kernel else None
        assert self.actor is not None
        self.actor.refresh()
        return self.actor

    def close(self) -> None:
        self.env.close()


def loaded_summary(value: Any) -> dict[str, Any] | None:
    """Return a summary from a checkpoint; None: nothing was evaluated.

    Raises: TypeError, ValueError.
    """
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(x, int | float) for x in value.values()):
        raise TypeError("a score is not a mapping of numbers")
    if lacks := {"env_steps", "episodes", "return_mean", "return_std"} - value.keys():
        raise ValueError(f"a score lacks {min(lacks)}")
    if not all(map(math.isfinite, value.values())):
        raise ValueError("a score is not finite")
    return value


class SharedEvaluator(Evaluator):
    """Plays evaluation episodes in the collector's environment, between its episodes.

    A due evaluation waits for the end of the open episode, at most until the next one is due. That
    one, and the one at the end of a run, cut the open episode. So does every evaluation of an
    on-policy policy, because its rollouts are never shortened.
    """

    def __init__(self, config: Config, collector: Collector, *, seed: int) -> None:
        super().__init__(
            config.env,
            episodes=config.run.eval_episodes,
            seed=seed,
            max_steps=config.eval.max_episode_steps,
            agents=config.agents,
            envs=1,
            env=collector.env,
        )
        self.collector, self.waits = collector, not config.policy.on_policy
        self.repeats = ""  # not tried, because a reset may be slow

    def ready(self) -> bool:
        """Return whether a due evaluation cuts no episode. Ask the collector to end an open one."""
        self.collector.wanted = self.waits
        return not self.waits or bool(self.collector.ended.all())

    def run_until(
        self, stop: Stop, policy: Policy, *, env_steps: int, watch: Watch | None = None
    ) -> Evaluation | None:
        with self.collector.lent_env():
            return super().run_until(stop, policy, env_steps=env_steps, watch=watch)

    def close(self) -> None:
        """Do nothing: the collector closes its environment."""


DIRECTORY, TAG = "videos", "eval/video"  # in the run directory, in TensorBoard
MAX_STEPS = 2000  # most env steps of a recorded episode
MAX_FRAMES = 256  # of a video; longer episodes skip frames
SIDE = 320  # approximate pixels of the longer side


class FilmingEvaluator(Evaluator):
    """An evaluator that records one additional episode after some evaluations as an animated GIF.

    The episode is greedy, in its own environment, with the seed of evaluations. Random streams are
    restored, so a run has the same numbers with and without videos. An error is logged as a warning
    and ends the videos.
    """

    def __init__(
        self,
        config: Config,
        *,
        seed: int,
        log: Log,
        run_dir: Path,
        compiled: Compiled | None = None,
    ) -> None:
        """Raises: ConfigError if the environment cannot be rendered."""
        steps, agents = config.eval.max_episode_steps, config.agents
        episodes = config.run.eval_episodes
        super().__init__(
            config.env, episodes=episodes, seed=seed, max_steps=steps, agents=agents,
            compiled=compiled,
        )  # fmt: skip
        assert config.run.video_every is not None
        self.every: int | None = config.run.video_every
        self.eval_every, self.log, self.run_dir = config.run.eval_every, log, run_dir
        self.film = Evaluator(
            config.env, episodes=1, seed=seed, max_steps=min(steps, MAX_STEPS), agents=agents,
            envs=1, render=True,
        )  # fmt: skip
        self.film.warned = self.film.warned_of_length = True  # said by the evaluation

    def run_until(
        self, stop: Stop, policy: Policy, *, env_steps: int, watch: Watch | None = None
    ) -> Evaluation | None:
        evaluation = super().run_until(stop, policy, env_steps=env_steps, watch=watch)
        if evaluation is not None and self._due(env_steps):
            restore = remember_streams(policy)
            try:
                self._play(stop, policy, env_steps)
            except (ConfigError, EnvError, ResourceError, StorageError, OSError) as e:
                self.every = None
                _logger.warning("run.video_every: %s; no more videos are made", e)
            finally:
                restore()
        return evaluation

    def _due(self, env_steps: int) -> bool:
        """Return whether the evaluation at ``env_steps`` is the first of its ``video_every`` steps.

        It depends on the steps alone, so that a resumed run makes the videos of an uninterrupted
        one.
        """
        if self.every is None:
            return False
        number = env_steps // self.eval_every
        before = (number - 1) * self.eval_every
        return number == 0 or number * self.eval_every // self.every > before // self.every

    def _play(self, stop: Stop, policy: Policy, env_steps: int) -> None:
        filmed = film(self.film, policy, env_steps=env_steps, stop=stop, moved=self._moved)
        if filmed is None:
            return
        encoded, (height, width) = filmed
        path = self.run_dir / DIRECTORY / f"step_{env_steps:012d}.gif"
        path.parent.mkdir(exist_ok=True)
        replace_file(path, encoded)
        self.log.image(TAG, env_steps, encoded, height=height, width=width)

    def _moved(self) -> None:
        """Tell the watchdog that the episode goes on."""
        self.steps += 1

    def close(self) -> None:
        super().close()
        self.film.close()


def film(
    evaluator: Evaluator,
    policy: Policy,
    *,
    env_steps: int,
    stop: Stop = lambda: False,
    moved: Callable[[], None] = lambda: None,
) -> tuple[bytes, tuple[int, int]] | None:
    """Return an evaluation as an animated GIF, with height and width; None once ``stop()``.

    ``evaluator``: with ``render``. ``moved``: is called for every frame.
    """
    frames = Frames(moved)
    watch = Watch(frames.add)
    frames.watch = watch
    if evaluator.run_until(stop, policy, env_steps=env_steps, watch=watch) is None:
        return None
    height, width, _ = frames.frames[0].shape
    return encode_gif(frames.frames, fps=evaluator.env.fps / watch.stride), (height, width)


class Frames:
    """At most ``MAX_FRAMES`` evenly spaced frames of one episode, and its last one."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self.moved, self.frames = moved, list[np.ndarray]()
        self.watch: Watch | None = None

    def add(self, shown: WatchedRow) -> None:
        self.moved()
        assert self.watch is not None
        if len(self.frames) == MAX_FRAMES and shown.reading is not None:
            self.frames = self.frames[::2]
            self.watch.stride *= 2
            if shown.t % self.watch.stride:
                return
        self.frames.append(enlarged(reduced(shown.picture, side=SIDE), side=SIDE))
