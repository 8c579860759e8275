"""Atari 2600 games as single frames: ale-py's own vector environment, without its frame stack.

The frames are those of Gymnasium's AtariPreprocessing to the bit (a test compares them), and need
no OpenCV of yours. Source: Machado et al. 2018 (sticky actions, game over as the only end);
Mnih et al. 2015 (frame skip, maximum over two frames, 84 x 84 luminance).
"""

from difflib import get_close_matches
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.diagnostic.lockstep import NEXT_STEP_METADATA, Single, need_count

ATARI = "rlrun/Atari-v0"
SIDE = 84  # pixels
MAX_FRAMES = 108_000  # 30 minutes of play at 60 frames per second; Machado et al. 2018


def find_game(game: Any, games: list[str]) -> str:
    """The one of ``games`` (ms_pacman) that is meant by MsPacman, ms-pacman or ms_pacman.

    Raises:
        ValueError: none is; names the closest.
    """
    plain = {name.replace("_", ""): name for name in games}
    wanted = str(game).lower().replace("_", "").replace("-", "").replace(" ", "")
    if wanted in plain:
        return plain[wanted]
    near = [plain[name] for name in get_close_matches(wanted, plain, 3, 0.0)]
    raise ValueError(f"game = {game}: no such game; closest: {', '.join(near)}")


class Atari(VectorEnv[Any, Any, Any]):
    """Observation uint8 [84, 84], the luminance of the screen; rewards as the game counts them.

    Every action is shown to the game for ``frame_skip`` frames (60 a second); the observation is
    the pixelwise maximum of the last two of them. In each frame the game keeps its last action
    with probability ``sticky``. A game opens with fewer than ``noop_max`` frames of no action and
    is truncated after ``max_episode_steps`` env steps, at most 108000 frames. An episode terminates
    when the game is over; with ``life_loss`` also when a life is lost, and the next one goes on
    where that left off, after one step of no action. Actions are those the game knows, with
    ``full_action_set`` all 18. ``threads`` (0: one per core) changes no row.
    """

    metadata = NEXT_STEP_METADATA

    def __init__(
        self,
        num_envs: int = 1,
        *,
        game: str = "Pong",
        sticky: float = 0.25,
        frame_skip: int = 4,
        noop_max: int = 0,
        full_action_set: bool = False,
        life_loss: bool = False,
        threads: int = 0,
        max_episode_steps: int | None = None,
    ) -> None:
        from ale_py import roms
        from ale_py.vector_env import AtariVectorEnv

        _check(sticky, frame_skip, noop_max, threads)
        most = MAX_FRAMES // frame_skip
        self.limit = min(max_episode_steps or most, most)
        self._ale = AtariVectorEnv(
            find_game(game, roms.get_all_rom_ids()),
            num_envs,
            num_threads=min(threads, num_envs),
            # Its own limit leaves the last frame out of the observation it ends with.
            max_num_frames_per_episode=2 * MAX_FRAMES,
            repeat_action_probability=sticky,
            full_action_space=full_action_set,
            stack_num=1,
            img_height=SIDE,
            img_width=SIDE,
            frameskip=frame_skip,
            noop_max=noop_max,
            life_loss_info=life_loss,
            reward_clipping=False,
            use_fire_reset=False,
        )
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
        self.single_action_space = self._ale.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = self._ale.action_space
        self.playing = False
        self._clear()

    def cut(self) -> None:
        """Have the open episodes truncated: the next step opens others."""
        self.done = self._cut = np.ones(self.num_envs, np.bool_)

    def _clear(self) -> None:
        none = np.zeros(self.num_envs, np.bool_)
        self.t = np.zeros(self.num_envs, np.int64)  # env steps of the episode
        self.done, self._cut = none, none  # the last row ended an episode; by our limit
        self._late = none  # the game ended in an opening row: its next row is its last

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self._clear()
        self.playing = True
        obs, info = self._ale.reset(seed=seed)
        return obs[:, 0], info

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        opens, late = self.done, self._late
        obs, reward, over, _, info = self._ale.step(np.where(opens, 0, actions))
        if self._cut.any():
            obs, info = self._ale.reset(options={"reset_mask": self._cut})
            over &= ~self._cut
        reward[opens] = 0
        self._late = opens & over & (info["lives"] == 0)
        self.t = np.where(opens, 0, self.t + 1)
        terminated = (over & ~opens) | late
        truncated = (self.t >= self.limit) & ~terminated
        self.done, self._cut = terminated | truncated, truncated
        return obs[:, 0], reward, terminated, truncated, info


class AtariSingle(Single):
    vector = Atari

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "threads": 1})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is None and self._vector.playing:  # open the next episode as the vector does
            if not self._vector.done[0]:  # Gymnasium's TimeLimit cut it
                self._vector.cut()
            obs, *_ = self._vector.step(np.zeros(1, np.int64))
            return self._own(obs), {}
        return super().reset(seed=seed, options=options)


def pooled(kwargs: dict[str, Any], ids: list[str]) -> tuple[str, dict[str, Any]]:
    """envpool's id and arguments for an ``Atari`` with ``kwargs``.

    Its games always open with at least one frame of no action (none ends the process).

    Raises:
        ValueError: envpool has no such game, or an argument is out of its range.
    """
    made = {"game": "Pong", "sticky": 0.25, "frame_skip": 4, "noop_max": 0, **kwargs}
    threads, skip = made.get("threads", 0), made["frame_skip"]
    _check(made["sticky"], skip, made["noop_max"], threads)
    games = {env_id.removesuffix("-v5").lower(): env_id for env_id in ids if env_id[-3:] == "-v5"}
    arguments = {
        "stack_num": 1,
        "img_height": SIDE,
        "img_width": SIDE,
        "gray_scale": True,
        "frame_skip": skip,
        "noop_max": max(1, made["noop_max"] - 1),
        "repeat_action_probability": float(made["sticky"]),
        "full_action_space": bool(made.get("full_action_set", False)),
        "episodic_life": bool(made.get("life_loss", False)),
        "zero_discount_on_life_loss": False,
        "use_fire_reset": False,
        "reward_clip": False,
        "num_threads": threads,
        "max_episode_steps": min(made.get("max_episode_steps") or MAX_FRAMES, MAX_FRAMES // skip),
    }
    return games[find_game(made["game"], list(games))], arguments


def _check(sticky: Any, frame_skip: Any, noop_max: Any, threads: Any) -> None:
    if isinstance(sticky, bool) or not isinstance(sticky, int | float) or not 0 <= sticky <= 1:
        raise ValueError(f"sticky = {sticky}: must be a probability")
    need_count("frame_skip", frame_skip, 1)
    need_count("noop_max", noop_max, 0)
    need_count("threads", threads, 0)
