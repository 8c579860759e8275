"""Atari 2600 games as single frames: ale-py's vector environment without its frame stack.

Frames equal those of Gymnasium's AtariPreprocessing bit for bit (tested) and do not need OpenCV.
Source: Machado et al. 2018 (sticky actions, game over as the only end); Mnih et al. 2015 (frame
skip, maximum over two frames, 84 x 84 luminance).
"""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from rlrun.env.contract import ResetResult, VectorResult
from rlrun.env.diagnostic.vector import (
    NEXT_STEP_METADATA,
    SINGLE_METADATA,
    SingleFromVector,
    checked_arguments,
    flag,
    integer,
    number,
    text,
)

HEIGHT, WIDTH = 210, 160  # pixels of a screen


def area_weights(size: int, resized: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (indices, weights) [K, resized]: the source pixels of each resized pixel.

    Every resized pixel is the mean of an interval of size / resized pixels. They are float32 and
    added in the order of OpenCV's INTER_AREA, so that rounding is the same.
    """
    scale = size / resized
    sources = []
    for k in range(resized):
        start, stop = k * scale, (k + 1) * scale
        cell = min(scale, size - start)
        first, last = int(np.ceil(start)), min(int(np.floor(stop)), size - 1)
        parts = [(first - 1, (first - start) / cell)] if first - start > 1e-3 else []
        parts += [(i, 1 / cell) for i in range(first, last)]
        if stop - last > 1e-3:
            parts.append((last, min(stop - last, 1.0, cell) / cell))
        sources.append(parts)
    index = np.zeros((max(map(len, sources)), resized), np.int64)
    weight = np.zeros(index.shape, np.float32)
    for k, parts in enumerate(sources):
        for j, (i, part) in enumerate(parts):
            index[j, k], weight[j, k] = i, part
    return index, weight


def area_resize(height: int, width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from uint8 [210, 160] to uint8 [height, width], rounded half to even."""
    rows, row_weights = area_weights(HEIGHT, height)
    columns, column_weights = area_weights(WIDTH, width)

    def resize(image: np.ndarray) -> np.ndarray:
        x = image.astype(np.float32)
        wide = sum(x[:, i] * w for i, w in zip(columns, column_weights, strict=True))
        out = sum(wide[i] * w[:, None] for i, w in zip(rows, row_weights, strict=True))
        resized: np.ndarray = np.rint(out).astype(np.uint8)
        return resized

    return resize


class SingleGame:
    """One game with the steps of ale-py's vector environment: it resets in the step after an end.

    ``frames`` [2, 210, 160]: the maximum of the last two frames, and the last frame.
    """

    def __init__(
        self,
        game: str,
        num_envs: int = 1,
        *,
        frameskip: int,
        noop_max: int,
        repeat_action_probability: float,
        full_action_space: bool,
        life_loss_info: bool,
        img_height: int,
        img_width: int,
        **ignored: Any,
    ) -> None:
        """Arguments are ale-py's. ``ignored``: those for threads, stack and rewards."""
        from ale_py import ALEInterface, LoggerMode, roms

        assert num_envs == 1
        ALEInterface.setLoggerMode(LoggerMode.Error)
        rom = roms.get_rom_path(game)
        assert rom is not None, game
        self.rom, self.frame_skip, self.noop_max = rom, frameskip, noop_max
        self.life_loss_info = life_loss_info
        self.ale = ALEInterface()
        self.ale.setFloat("repeat_action_probability", repeat_action_probability)
        self.ale.loadROM(self.rom)
        legal = self.ale.getLegalActionSet() if full_action_space else None
        self.actions = tuple(legal or self.ale.getMinimalActionSet())
        self.single_action_space = spaces.Discrete(len(self.actions))
        self.resize = area_resize(img_height, img_width)
        self.frames = np.zeros((2, HEIGHT, WIDTH), np.uint8)
        self.rng = np.random.RandomState()  # for the number of frames without action
        self.over, self.lives = False, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        """Begin a game. A seed loads the cartridge again, which takes 0.2 s."""
        if seed is not None:
            self.ale.setInt("random_seed", seed)
            self.rng.seed(seed)
            self.ale.loadROM(self.rom)
        self.ale.reset_game()
        for _ in range(self._noops()):
            self.ale.act(0)
            if self.ale.game_over():
                self.ale.reset_game()
        self.frames[0], self.frames[1] = self._screen(), 0
        self.over, self.lives = False, self.ale.lives()
        return self.resize(self.frames[0])[None, None], self._info()

    def _noops(self) -> int:
        """Return a number below ``noop_max``, sampled as libstdc++ does (Lemire 2019)."""
        size = max(self.noop_max, 1)
        threshold = 2**32 % size
        while True:
            product = int.from_bytes(self.rng.bytes(4), "little") * size
            if product % 2**32 >= threshold:
                return product >> 32

    def _screen(self) -> np.ndarray:
        screen: np.ndarray = self.ale.getScreenGrayscale()[:HEIGHT]
        return screen

    def _info(self) -> dict[str, Any]:
        return {"lives": np.array([self.lives]), "_lives": np.ones(1, np.bool_)}

    def step(self, actions: np.ndarray) -> VectorResult:
        """Hold an action for ``frame_skip`` frames, or begin the next game after an end."""
        none = np.zeros(1, np.bool_)
        if self.over:
            obs, info = self.reset()
            return obs, np.zeros(1), none, none.copy(), info
        action, reward = self.actions[int(actions[0])], 0
        for left in range(self.frame_skip, 0, -1):
            reward += self.ale.act(action)
            self.over = self.ale.game_over()
            if self.over:
                break
            if left <= 2:
                self.frames[left - 1] = self._screen()
        np.maximum(self.frames[0], self.frames[1], out=self.frames[0])
        lost_life = self.ale.lives() < self.lives
        self.lives = self.ale.lives()
        ends = self.over or (self.life_loss_info and lost_life)
        obs = self.resize(self.frames[0])[None, None]
        return obs, np.array([float(reward)]), np.array([ends]), none, self._info()


ATARI_ID = "rlrun/Atari-v0"
SCREEN_SIZE = 84  # pixels
MAX_FRAMES = 108_000  # 30 minutes of play at 60 frames per second; Machado et al. 2018


def find_game(game: Any, games: list[str]) -> str:
    """Return the entry of ``games`` that matches ``game``, ignoring case, ``_``, ``-`` and spaces.

    MsPacman, ms-pacman and ms_pacman all match ms_pacman.

    Raises:
        ValueError: none matches; the message names the closest.
    """
    normalized = {name.replace("_", ""): name for name in games}
    wanted = str(game).lower().replace("_", "").replace("-", "").replace(" ", "")
    if wanted in normalized:
        return normalized[wanted]
    closest = [normalized[name] for name in get_close_matches(wanted, normalized, 3, 0.0)]
    raise ValueError(f"game = {game}: no such game; closest: {', '.join(closest)}")


class AtariVectorEnv(VectorEnv[Any, Any, Any]):
    """Atari games. Observation uint8 [84, 84]: luminance; reward: the score's change.

    Every action is repeated for ``frame_skip`` frames (60 per second). The observation is the
    pixelwise maximum of the last two of them. In each frame the game keeps its last action with
    probability ``sticky``. A game starts with fewer than ``noop_max`` frames of no action and is
    truncated after ``max_episode_steps`` env steps, at most 108000 frames. An episode terminates
    when the game is over. With ``life_loss`` it also terminates when a life is lost, and the next
    episode continues the game after one step of no action. Actions are the minimal set of the game,
    with ``full_action_set`` all 18. ``threads`` (0: one per core) does not affect rows.
    """

    metadata = NEXT_STEP_METADATA
    game: str = text("Pong")
    sticky: float = number(0.25, 0, 1)
    frame_skip: int = integer(4, 1)
    noop_max: int = integer(0, 0)
    full_action_set: bool = flag(False)
    life_loss: bool = flag(False)
    threads: int = integer(0, 0)
    games: Any = None  # the class of ``_ale``; None: ale-py's vector environment

    def __init__(
        self, num_envs: int = 1, *, max_episode_steps: int | None = None, **arguments: Any
    ) -> None:
        from ale_py import roms, vector_env

        checked = checked_arguments(AtariVectorEnv, arguments)
        max_steps = MAX_FRAMES // checked["frame_skip"]
        self.limit = min(max_episode_steps or max_steps, max_steps)
        self._ale = (self.games or vector_env.AtariVectorEnv)(
            find_game(checked["game"], roms.get_all_rom_ids()),
            num_envs,
            num_threads=min(checked["threads"], num_envs),
            # The final observation of ale-py's own limit misses the last frame.
            max_num_frames_per_episode=2 * MAX_FRAMES,
            frameskip=checked["frame_skip"],
            noop_max=checked["noop_max"],
            life_loss_info=checked["life_loss"],
            reward_clipping=False,
            **_common_arguments(checked),
        )
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 255, (SCREEN_SIZE, SCREEN_SIZE), np.uint8)
        self.single_action_space = self._ale.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.playing = False
        self._clear()

    def truncate(self) -> None:
        """Truncate the current episodes. The next step starts new ones."""
        self.done = self._truncated = np.ones(self.num_envs, np.bool_)

    def _clear(self) -> None:
        none = np.zeros(self.num_envs, np.bool_)
        self.t = np.zeros(self.num_envs, np.int64)  # env steps of the episode
        self.done, self._truncated = none, none  # the last row ended an episode; by the limit
        self._over_at_reset = none  # game over in the reset row: the next row is the last

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        self._clear()
        self.playing = True
        obs, info = self._ale.reset(seed=seed)
        return obs[:, 0], info

    def step(self, actions: np.ndarray) -> VectorResult:
        resets, over_at_reset = self.done, self._over_at_reset
        obs, reward, over, _, info = self._ale.step(np.where(resets, 0, actions))
        if self._truncated.any():
            obs, info = self._ale.reset(options={"reset_mask": self._truncated})
            over &= ~self._truncated
        reward[resets] = 0
        self._over_at_reset = resets & over & (info["lives"] == 0)
        self.t = np.where(resets, 0, self.t + 1)
        terminated = (over & ~resets) | over_at_reset
        truncated = (self.t >= self.limit) & ~terminated
        self.done, self._truncated = terminated | truncated, truncated
        return obs[:, 0], reward, terminated, truncated, info


class OneGame(AtariVectorEnv):
    """One game with the same rows, whose state can be saved."""

    games = SingleGame

    def picture(self, column: int) -> np.ndarray:
        """Return the screen, uint8 [210, 160, 3]; ``column`` is 0."""
        screen: np.ndarray = self._ale.ale.getScreenRGB()[:HEIGHT]
        return screen


class AtariEnv(SingleFromVector):
    """One game as a single environment."""

    metadata = SINGLE_METADATA | {"render_fps": 15}  # with frame_skip 4

    def __init__(self, *, render_mode: str | None = None, **kwargs: Any) -> None:
        super().__init__(OneGame(**{**kwargs, "threads": 1}), render_mode)

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetResult:
        if seed is None and self._vector.playing:  # autoreset as the vector does
            if not self._vector.done[0]:  # truncated by Gymnasium's TimeLimit
                self._vector.truncate()
            obs, *_ = self._vector.step(np.zeros(1, np.int64))
            return self._own(obs), {}
        return super().reset(seed=seed, options=options)


def envpool_arguments(kwargs: dict[str, Any], ids: list[str]) -> tuple[str, dict[str, Any]]:
    """Return envpool's id and arguments that correspond to ``AtariVectorEnv(**kwargs)``.

    Games start with at least one frame of no action, because ``noop_max = 0`` crashes envpool.

    Raises:
        ValueError: envpool has no such game, or an argument is out of its range.
    """
    limit = kwargs.get("max_episode_steps") or MAX_FRAMES
    game_arguments = {name: value for name, value in kwargs.items() if name != "max_episode_steps"}
    checked = checked_arguments(AtariVectorEnv, game_arguments)
    games = {env_id.removesuffix("-v5").lower(): env_id for env_id in ids if env_id[-3:] == "-v5"}
    arguments = {
        "gray_scale": True,
        "frame_skip": checked["frame_skip"],
        "noop_max": max(1, checked["noop_max"] - 1),
        "episodic_life": checked["life_loss"],
        "zero_discount_on_life_loss": False,
        "reward_clip": False,
        "num_threads": checked["threads"],
        "max_episode_steps": min(limit, MAX_FRAMES // checked["frame_skip"]),
        **_common_arguments(checked),
    }
    return games[find_game(checked["game"], list(games))], arguments


def _common_arguments(checked: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that ale-py and envpool call the same."""
    return {
        "stack_num": 1,
        "img_height": SCREEN_SIZE,
        "img_width": SCREEN_SIZE,
        "repeat_action_probability": float(checked["sticky"]),
        "full_action_space": checked["full_action_set"],
        "use_fire_reset": False,
    }
