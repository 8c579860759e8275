"""``rlrun play`` and ``rlrun eval --video``: the frames are the environment's own."""

import re
import subprocess
from collections.abc import Callable
from importlib.machinery import ModuleSpec

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image, ImageSequence

import rlrun
from rlrun.cli.main import main
from rlrun.errors import ConfigError
from rlrun.video.files import VideoFile
from tests.in_process import assert_one_line
from tests.once import made_once

pytest.importorskip("pygame")
pytest.importorskip("imageio")
ffmpeg = pytest.importorskip("imageio_ffmpeg")

RUNS = {
    "cartpole": ("policy=r2d2", "env=cartpole"),
    "tmaze": ("policy=ppo", "env=tmaze", "memory=gru", "policy.segment_len=16"),
    "pendulum": ("policy=sac", "env=pendulum"), "bandit": ("policy=random", "env=bandit"),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    def make(work):
        for name, words in RUNS.items():
            line = [*words, "debug=smoke", "run.total_steps=120", "run.stop_return=null", "-q"]
            small = ["run.eval_episodes=1", *["torso.hidden=[8]"] * (name != "bandit")]
            assert main([*line, *small, f"run.dir={work / name}"]) == 0

    return made_once(tmp_path_factory, "video_runs", make)


def played(run, env_id, seed, steps):
    """Frames and return of an episode, in a user's loop around Gymnasium's environment."""
    env, agent = gym.make(env_id, render_mode="rgb_array"), rlrun.load(run)
    obs, _ = env.reset(seed=seed)
    agent.reset()
    frames, total, reward, over = [env.render()], 0.0, None, False
    while not over and len(frames) <= steps:
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs, reward))
        frames.append(env.render())
        total, over = total + float(reward), terminated or truncated
    env.close()
    return frames, total


def decode(path):
    """The frames of a video; a GIF holds equal ones once, for as long as all of them."""
    if path.suffix == ".mp4":
        command = [ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-i", str(path)]
        raw = subprocess.run([*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
                             stdout=subprocess.PIPE, check=True).stdout  # fmt: skip
        return [*np.frombuffer(raw, np.uint8).reshape(-1, 400, 600, 3)]
    with Image.open(path) as file:
        shown = [(f.convert("RGB"), f.info["duration"]) for f in ImageSequence.Iterator(file)]
    return [np.asarray(frame) for frame, duration in shown for _ in range(duration // 20)]


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_frames_are_those_of_the_environment(runs, tmp_path, capsys, suffix):
    """Exactly in a GIF, else within what the codec loses."""
    path = tmp_path / f"out{suffix}"
    line = ["play", str(runs / "cartpole"), "--seed", "11", "--episodes", "1", "--video", str(path)]
    assert main(line) == 0
    expected, total = played(runs / "cartpole", "CartPole-v1", 11, 500)
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"episode 1: return {total:g}, {len(expected) - 1} steps"
    assert out[1].startswith(f"{path}: {len(expected)} frames, ")
    decoded = decode(path)
    assert len(decoded) == len(expected)
    for frame, own in zip(decoded, expected, strict=True):
        difference = np.abs(frame.astype(int) - own)
        assert difference.mean() < 0.5 if suffix == ".mp4" else difference.max() == 0
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_episodes_go_on_after_one_that_was_cut(runs, tmp_path, capsys):
    path = tmp_path / "out.gif"
    line = ["play", str(runs / "pendulum"), "--seed", "5", "--episodes", "3", "--max-steps", "4"]
    assert main([*line, "--video", str(path)]) == 0
    *out, last = capsys.readouterr().out.splitlines()
    for i, text in enumerate(out):
        total = played(runs / "pendulum", "Pendulum-v1", 5 + i, 4)[1]
        found = re.fullmatch(rf"episode {i + 1}: return (\S+), 4 steps, cut", text)
        assert found
        assert float(found[1]) == pytest.approx(total, rel=1e-3)
    assert len(out) == 3
    assert last.startswith(f"{path}: 15 frames")


@pytest.mark.parametrize("name", ["cartpole", "tmaze"])
def test_the_score_of_an_evaluation_with_a_video_is_its_score(runs, tmp_path, capsys, name):
    """Also where a native vector environment plays; the video shows its first environment."""
    run_dir, path = str(runs / name), tmp_path / "out.gif"
    assert main(["eval", run_dir, "--episodes", "2"]) == 0
    plain, err = capsys.readouterr()
    assert {*plain.split()[::2]} >= {"return_mean", "env_steps"}, "standard output has scores alone"
    assert "weights: final" in err
    assert main(["eval", run_dir, "--episodes", "2", "--seed", "7", "--weights", "best"]) == 0
    assert "weights: best" in capsys.readouterr().err
    assert main(["eval", run_dir, "--episodes", "2", "--video", str(path), "--traces"]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines(keepends=True)
    assert "".join(rest) == plain
    steps = re.fullmatch(r"episode 1: return \S+, (\d+) steps\n", first)
    assert steps
    assert second.startswith(f"{path}: {int(steps[1]) + 1} frames")


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "bandit"])
def test_traces_stand_beside_the_picture(runs, tmp_path, capsys, name):
    path = tmp_path / "out.gif"
    line = ["play", str(runs / name), "--video", str(path), "--max-steps", "5", "--seed", "3"]
    said, sizes = [], []
    for more in ([], ["--traces", "--overwrite"]):
        assert main([*line, *more]) == 0
        said.append(capsys.readouterr().out.partition("frames")[0])
        with Image.open(path) as file:
            sizes.append(file.size)
    assert said[0] == said[1]
    assert sizes[1][1] >= 400
    assert sizes[1][0] >= sizes[0][0] + 300


def test_a_window_shows_the_frames_until_it_is_closed(runs, monkeypatch, capsys):
    import pygame

    from rlrun.video.files import EpisodeWindow

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    seen: list[np.ndarray] = []
    add: Callable[[EpisodeWindow, np.ndarray], None] = EpisodeWindow.add

    def adding(window, frame):
        if len(seen) == 5:
            pygame.event.post(pygame.event.Event(pygame.QUIT))
        add(window, frame)
        shown = pygame.image.tobytes(pygame.display.get_surface(), "RGB")
        assert shown == frame.tobytes()
        seen.append(frame)

    monkeypatch.setattr(EpisodeWindow, "add", adding)
    assert main(["play", str(runs / "cartpole"), "--fps", "1000"]) == 0
    assert len(seen) == 6
    assert "episode" not in capsys.readouterr().out  # it did not end
    assert pygame.display.get_surface() is None


REFUSED = [
    (["--video", f"{'n' * 300}.gif"], "250"),
    (["--video", "a.avi"], "--video = a.avi: "),
    (["--video", "no/such/a.gif"], "no/such"),
    (["--video", "old.gif"], "--video = old.gif: "),
    (["--video", "a.gif", "--fps", "0"], "> 0"),
    ([], "WAYLAND_DISPLAY"),
]


@pytest.mark.parametrize(("words", "text"), REFUSED)
def test_misuse_is_one_line_and_writes_nothing(runs, tmp_path, monkeypatch, capsys, words, text):
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "old.gif").write_bytes(b"old")
    assert main(["play", str(runs / "bandit"), *words]) == 2
    assert_one_line(capsys, text)
    assert main(["eval", str(runs / "bandit"), "--traces"]) == 2
    assert "--video FILE" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["old.gif"]


def test_a_video_from_python_leaves_no_driver(runs, tmp_path, monkeypatch):
    """Else the next call without a video would open a window that nobody sees."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    rlrun.play(runs / "cartpole", video=tmp_path / "a.gif", max_steps=3)
    with pytest.raises(ConfigError, match="WAYLAND_DISPLAY"):
        rlrun.play(runs / "cartpole")


LEFT = "pip install --force-reinstall --no-deps pygame-ce"  # pygame was uninstalled beside it


@pytest.mark.parametrize(
    ("module", "words", "found", "fix"),
    [("imageio", ["--video", "a.mp4"], None, "[video]'"),
     ("pygame", [], ModuleSpec("pygame", None), LEFT)],
)  # fmt: skip
def test_a_missing_package_is_told_with_its_extra(
    runs, monkeypatch, capsys, module, words, found, fix
):
    monkeypatch.setattr("rlrun.video.files.find_spec", lambda name: found)
    assert main(["play", str(runs / "bandit"), *words]) == 7
    assert_one_line(capsys, module, fix)


def test_what_cannot_be_drawn_is_told_before_anything_is_written(tmp_path, monkeypatch, capsys):
    """No frame has come: no file; one whose pictures end early leaves none either."""
    run_dir = tmp_path / "run"
    words = ["policy=random", "env=gym", "env.id=tests.env.walks:test/Walk-v0"]
    words += ["--trust", "tests"]
    assert main([*words, "-q", "run.eval_episodes=1", f"run.dir={run_dir}"]) == 0
    capsys.readouterr()
    assert main(["play", str(run_dir), "--video", str(tmp_path / "a.gif"), *words[-2:]]) == 2
    assert_one_line(capsys, "render_modes")
    assert not list(tmp_path.glob("*.gif"))


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_video_that_fails_leaves_nothing(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    frame = np.zeros((33, 41, 3), np.uint8)
    broken = VideoFile(path, fps=30)
    broken.add(frame)
    broken.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"old")
    with VideoFile(path, fps=30) as file:
        for _ in range(3):
            file.add(frame)
    assert len(path.read_bytes()) > 100
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("fps", [7, 30, 50, 60, 240])
def test_a_gif_lasts_as_long_as_its_frames(tmp_path, fps):
    """Viewers show a frame of less than 20 ms for 100 ms."""
    path = tmp_path / "a.gif"
    with VideoFile(path, fps=fps) as file:
        for i in range(48):
            file.add(np.full((4, 4, 3), i, np.uint8))
    with Image.open(path) as gif:
        shown = [(f.convert("L").getpixel((0, 0)), f.info["duration"])
                 for f in ImageSequence.Iterator(gif)]  # fmt: skip
    assert min(duration for _, duration in shown) >= 20
    assert sum(duration for _, duration in shown) == pytest.approx(48_000 / fps, abs=20)
    assert (shown[0][0], shown[-1][0]) == (0, 47)
    assert len(shown) == 48 or fps > 50
