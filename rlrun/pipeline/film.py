"""Evaluation videos of a training run: one more episode, drawn, now and then (run.video_every)."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rlrun.errors import ConfigError, EnvError, ResourceError, StorageError
from rlrun.log import Log
from rlrun.pipeline.evaluate import Evaluation, Evaluator
from rlrun.pipeline.generators import generators_state, load_generators
from rlrun.pipeline.watch import Watch, WatchedRow
from rlrun.rundir.durable import replace_file
from rlrun.schema import Config
from rlrun.types import Policy
from rlrun.video.files import encode_gif, enlarged, reduced

_logger = logging.getLogger(__name__)

DIRECTORY, TAG = "videos", "eval/video"  # of the run directory; of TensorBoard
MAX_STEPS = 2000  # env steps of an episode that is drawn
MAX_FRAMES = 256  # of a video; longer episodes are shown in larger steps
SIDE = 320  # pixels of the longer side, about


class FilmingEvaluator(Evaluator):
    """An evaluator that plays one more episode after some evaluations, as an animated GIF.

    The episode is played greedily in an environment of its own, with the seed of evaluations.
    Random streams are left as they were: a run has the same numbers with and without videos. What
    fails is a warning, and the end of the videos.
    """

    def __init__(self, config: Config, *, seed: int, log: Log, run_dir: Path) -> None:
        """Raises: ConfigError: the environment cannot be drawn."""
        steps, agents = config.eval.max_episode_steps, config.agents
        episodes = config.run.eval_episodes
        super().__init__(config.env, episodes=episodes, seed=seed, max_steps=steps, agents=agents)
        assert config.run.video_every is not None
        self.every: int | None = config.run.video_every
        self.eval_every, self.log, self.run_dir = config.run.eval_every, log, run_dir
        self.film = Evaluator(
            config.env, episodes=1, seed=seed, max_steps=min(steps, MAX_STEPS), agents=agents,
            envs=1, render=True,
        )  # fmt: skip
        self.film.warned = True  # of an episode that is cut

    def run_until(
        self,
        stop: Callable[[], bool],
        policy: Policy,
        *,
        env_steps: int,
        watch: Watch | None = None,
    ) -> Evaluation | None:
        evaluation = super().run_until(stop, policy, env_steps=env_steps, watch=watch)
        if evaluation is not None and self._due(env_steps):
            try:
                with random_streams_kept(policy):
                    self._play(stop, policy, env_steps)
            except (ConfigError, EnvError, ResourceError, StorageError, OSError) as e:
                self.every = None
                _logger.warning("run.video_every: %s; there are no more videos", e)
        return evaluation

    def _due(self, env_steps: int) -> bool:
        """Return whether the evaluation at ``env_steps`` is the first of its ``video_every``.

        It follows from the steps alone, so that a resumed run makes the videos of the uncut one.
        """
        if self.every is None:
            return False
        number = env_steps // self.eval_every
        before = (number - 1) * self.eval_every
        return number == 0 or number * self.eval_every // self.every > before // self.every

    def _play(self, stop: Callable[[], bool], policy: Policy, env_steps: int) -> None:
        frames = Frames(self._moved)
        watch = Watch(frames.add)
        frames.watch = watch
        if self.film.run_until(stop, policy, env_steps=env_steps, watch=watch) is None:
            return
        encoded = encode_gif(frames.frames, fps=self.film.env.fps / watch.stride)
        path = self.run_dir / DIRECTORY / f"step_{env_steps:012d}.gif"
        path.parent.mkdir(exist_ok=True)
        replace_file(path, encoded)
        height, width, _ = frames.frames[0].shape
        self.log.image(TAG, env_steps, encoded, height=height, width=width)

    def _moved(self) -> None:
        """Let the watchdog see that the episode goes on."""
        self.steps += 1

    def close(self) -> None:
        super().close()
        self.film.close()


class Frames:
    """At most ``MAX_FRAMES`` frames of one episode, evenly spaced, and the last one."""

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


@contextmanager
def random_streams_kept(policy: Policy) -> Iterator[None]:
    """Leave the policy's generator and the global ones as they were before the block."""
    own, others = policy.generator.bit_generator.state, generators_state()
    try:
        yield
    finally:
        policy.generator.bit_generator.state = own
        load_generators(others)
