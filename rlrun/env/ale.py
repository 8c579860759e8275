"""One Atari game through ale-py's ALEInterface, with the interface of its vector environment.

The rows are those of ale-py's vector environment, bit for bit (tested), and the state of the game
can be saved, which that cannot. Frames need neither OpenCV nor a thread.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

HEIGHT, WIDTH = 210, 160  # pixels of a screen


def area_weights(size: int, resized: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (indices, weights) [K, resized]: the pixels of ``size`` that a resized one averages.

    Every resized pixel is the mean of an interval of size / resized pixels, which are float32 and
    added in their order as in OpenCV's INTER_AREA, so that rounding is the same.
    """
    scale = size / resized
    rows = []
    for k in range(resized):
        start, stop = k * scale, (k + 1) * scale
        cell = min(scale, size - start)
        first, last = int(np.ceil(start)), min(int(np.floor(stop)), size - 1)
        parts = [(first - 1, (first - start) / cell)] if first - start > 1e-3 else []
        parts += [(i, 1 / cell) for i in range(first, last)]
        if stop - last > 1e-3:
            parts.append((last, min(stop - last, 1.0, cell) / cell))
        rows.append(parts)
    index = np.zeros((max(map(len, rows)), resized), np.int64)
    weight = np.zeros(index.shape, np.float32)
    for k, parts in enumerate(rows):
        for j, (i, part) in enumerate(parts):
            index[j, k], weight[j, k] = i, part
    return index, weight


def area_resize(height: int, width: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from uint8 [210, 160] to uint8 [height, width], rounded half to even."""
    rows, row_weights = area_weights(HEIGHT, height)
    columns, column_weights = area_weights(WIDTH, width)

    def resize(image: np.ndarray) -> np.ndarray:
        x = image.astype(np.float32)
        wide = x[:, columns[0]] * column_weights[0]
        for i, weight in zip(columns[1:], column_weights[1:], strict=True):
            wide += x[:, i] * weight
        out = wide[rows[0]] * row_weights[0][:, None]
        for i, weight in zip(rows[1:], row_weights[1:], strict=True):
            out += wide[i] * weight[:, None]
        resized: np.ndarray = np.rint(out).astype(np.uint8)
        return resized

    return resize


class SingleGame:
    """A game as ale-py's vector environment of one game steps it: resets in the step after an end.

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
        """Arguments as ale-py's; ``ignored``: those of its threads, stack and rewards."""
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
        self.action_space = spaces.MultiDiscrete([len(self.actions)])
        self.resize = area_resize(img_height, img_width)
        self.frames = np.zeros((2, HEIGHT, WIDTH), np.uint8)
        self.rng = np.random.RandomState()  # of the frames without action
        self.over, self.lives = False, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game; a seed loads the cartridge again, which takes 0.2 s."""
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
        """Return a number below ``noop_max``, drawn as libstdc++ does (Lemire 2019)."""
        size = max(self.noop_max, 1)
        threshold = 2**32 % size
        while True:
            product = int.from_bytes(self.rng.bytes(4), "little") * size
            if product % 2**32 >= threshold:
                return product >> 32

    def _screen(self) -> np.ndarray:
        screen: np.ndarray = self.ale.getScreenGrayscale()[:HEIGHT]
        return screen

    def picture(self) -> np.ndarray:
        """Return the screen, uint8 [210, 160, 3]."""
        screen: np.ndarray = self.ale.getScreenRGB()[:HEIGHT]
        return screen

    def _info(self) -> dict[str, Any]:
        return {"lives": np.array([self.lives]), "_lives": np.ones(1, np.bool_)}

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Hold an action for ``frame_skip`` frames, or begin the next game after the last one."""
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

    def close(self) -> None:
        """Nothing to release."""
