"""Pictures: of environment 0, its own, and no row is another for being drawn."""

import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlrun.env import make_env
from rlrun.errors import ConfigError, ResourceError
from tests.compose import config
from tests.env import faulty
from tests.env.presets import assert_names, config_of, run, same_rows

PYGAME = ("cartpole", "cartpole_novel", "acrobot")


def made(name: str, num_envs: int, words: tuple[str, ...] = (), **given: Any) -> Any:
    c = config("policy=random", f"env={name}", *words)
    return make_env(c.env, num_envs=num_envs, evaluate=True, agents=c.agents, **given)


@pytest.mark.parametrize(
    ("name", "num_envs"),
    [("cartpole", 1), ("acrobot", 3), ("tmaze", 3), ("bitflip", 1), ("relay", 3), ("atari", 3)],
)
def test_rows_are_those_without_pictures(name: str, num_envs: int) -> None:
    if name in PYGAME:
        pytest.importorskip("pygame")
    if name == "atari":
        pytest.importorskip("ale_py")
    plain, drawn, images = made(name, num_envs), made(name, num_envs, render=True), []
    rows = run(drawn, 30, seed=5, look=lambda env: images.append(env.render()))
    same_rows(run(plain, 30, seed=5), rows)
    assert {(x.dtype, x.ndim, x.shape[-1]) for x in images} == {(np.dtype(np.uint8), 3, 3)}
    plain.close()
    drawn.close()


@pytest.mark.parametrize("name", ["cartpole", "cartpole_novel"])
def test_a_native_cartpole_is_drawn_as_gymnasium_draws_it(name: str) -> None:
    """Private: Gymnasium's gets the state, which observations round or hide."""
    pytest.importorskip("pygame")
    env = made(name, 3, render=True)
    env.reset(seed=1)
    env.step(np.array([1, 0, 1]))
    raw: Any = env._source.env
    single: Any = gym.make("CartPole-v1", render_mode="rgb_array")
    single.reset(seed=0)
    single.unwrapped.state = raw.state[:, 0]
    np.testing.assert_array_equal(env.render(), single.render())
    assert env.fps == 50


class Drawn(faulty.Boxes):
    """Its picture is ``picture``, which is raised where it is an exception."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    picture: Any = None

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        if isinstance(self.picture, Exception):
            raise self.picture
        return self.picture() if callable(self.picture) else self.picture


gym.register("test/Drawn-v0", Drawn, disable_env_checker=True)


@pytest.mark.parametrize(
    ("picture", "text"),
    [
        (gym.error.DependencyNotInstalled("pygame is not installed"), "[video]'"),
        (RuntimeError("no GL context"), "RuntimeError: no GL context"),
        (None, "render() NoneType"),
        (np.zeros((2, 2, 3)), "render() float64 [2, 2, 3]"),
        (np.zeros((0, 0, 3), np.uint8), "render() uint8 [0, 0, 3]"),
    ],
)
def test_what_is_no_picture_is_told(picture: Any, text: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(Drawn, "picture", picture)
    env = make_env(config_of("test/Drawn-v0"), num_envs=1, render=True)
    env.reset(seed=0)
    assert env.fps == 30
    with pytest.raises((ConfigError, ResourceError)) as error:
        env.render()
    assert_names(str(error.value), text)
    assert str(error.value).startswith("env.id = test/Drawn-v0: ")
    monkeypatch.setattr(Drawn, "picture", lambda self: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        env.render()


def test_what_has_no_pictures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = config_of("CartPole-v1", backend="envpool")
    with pytest.raises(ConfigError, match=r"env.backend = envpool: CartPole-v1"):
        make_env(pool, num_envs=1, render=True)
    monkeypatch.setenv("RLRUN_TRUST", "tests")
    with pytest.raises(ConfigError, match=r"render_modes .*\[\]"):
        made("pettingzoo", 1, render=True, words=("env.id=pettingzoo:tests.env.zoo_example",))
