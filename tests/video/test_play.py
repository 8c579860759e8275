"""``rlrun play`` and ``rlrun eval --video``: the frames are the environment's own."""

import subprocess
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image, ImageSequence

from rlrun.cli.main import main
from rlrun.env.catalog import find_spec
from rlrun.pipeline.evaluate import Evaluator
from rlrun.run import play
from rlrun.run.trained import load_trained
from rlrun.video.files import VideoFile
from tests.once import made_once

pytest.importorskip("pygame")
pytest.importorskip("imageio")
ffmpeg = pytest.importorskip("imageio_ffmpeg")

RUNS = {
    "cartpole": ("policy=r2d2", "env=cartpole"),
    "tmaze": ("policy=ppo", "env=tmaze", "memory=gru", "policy.segment_len=16"),
    "pendulum": ("policy=sac", "env=pendulum"),
    "bandit": ("policy=random", "env=bandit"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(work: Path) -> None:
        for name, words in RUNS.items():
            line = [*words, "debug=smoke", "run.total_steps=120", "run.stop_value=null", "-q"]
            assert main([*line, f"run.dir={work / name}"]) == 0

    return made_once(tmp_path_factory, "video_runs", make)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The frames that were written, and the actions of environment 0."""
    found: dict[str, list[Any]] = {"frames": [], "actions": []}
    add, env_step = VideoFile.add, play.Evaluator.run_until

    def adding(file: VideoFile, frame: np.ndarray) -> None:
        found["frames"].append(frame.copy())
        add(file, frame)

    def running(evaluator: Evaluator, *given: Any, **named: Any) -> Any:
        step = evaluator.env.step
        if "step" in vars(evaluator.env):  # an evaluation after an episode that was cut
            return env_step(evaluator, *given, **named)

        def stepping(action: np.ndarray) -> Any:
            found["actions"].append(np.array(action[0]))
            return step(action)

        monkeypatch.setattr(evaluator.env, "step", stepping)
        return env_step(evaluator, *given, **named)

    monkeypatch.setattr(VideoFile, "add", adding)
    monkeypatch.setattr(Evaluator, "run_until", running)
    return found


def own_frames(env_id: str, actions: list[np.ndarray], seed: int) -> tuple[list[Any], float]:
    """Frames and return of an episode, in a loop around Gymnasium's environment."""
    env = gym.make(find_spec(env_id), render_mode="rgb_array")
    env.reset(seed=seed)
    frames, total = [env.render()], 0.0
    for action in actions:
        _, reward, terminated, truncated, _ = env.step(action)
        frames.append(env.render())
        total += float(reward)
        if terminated or truncated:
            break
    env.close()
    return frames, total


def decode(path: Path) -> list[np.ndarray]:
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
def test_frames_are_those_of_the_environment(
    runs: Path,
    taken: dict[str, list[Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    suffix: str,
) -> None:
    """Exactly; the decoded file within what the codec or palette loses."""
    path = tmp_path / f"out{suffix}"
    line = ["play", str(runs / "cartpole"), "--seed", "11", "--episodes", "1", "--video", str(path)]
    assert main(line) == 0
    expected, total = own_frames("CartPole-v1", taken["actions"], 11)
    assert len(expected) == len(taken["frames"])
    assert all(np.array_equal(a, b) for a, b in zip(expected, taken["frames"], strict=True))
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"episode 1: return {total:g}, {len(expected) - 1} steps"
    assert out[1].startswith(f"{path}: {len(expected)} frames, ")
    decoded = decode(path)
    assert len(decoded) == len(expected)
    for frame, own in zip(decoded, expected, strict=True):
        difference = np.abs(frame.astype(int) - own)
        assert difference.mean() < 0.5 if suffix == ".mp4" else difference.max() == 0
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_episodes_go_on_after_one_that_was_cut(
    runs: Path, taken: dict[str, list[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.gif"
    line = ["play", str(runs / "pendulum"), "--seed", "5", "--episodes", "3", "--max-steps", "4"]
    assert main([*line, "--video", str(path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [text.partition(":")[0] for text in out[:3]] == ["episode 1", "episode 2", "episode 3"]
    assert all(text.endswith(", 4 steps, cut") for text in out[:3])
    assert len(taken["frames"]) == 3 * 5
    for i in range(3):
        own = own_frames("Pendulum-v1", taken["actions"][4 * i : 4 * i + 4], 5 + i)[0]
        shown = taken["frames"][5 * i : 5 * i + 5]
        assert [np.array_equal(a, b) for a, b in zip(own, shown, strict=True)] == [True] * 5


@pytest.mark.parametrize("name", ["cartpole", "tmaze", "bandit"])
def test_the_score_of_an_evaluation_with_a_video_is_its_score(
    runs: Path,
    taken: dict[str, list[Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """Also where a native vector environment plays; the video shows its first environment."""
    run_dir = str(runs / name)
    assert main(["eval", run_dir, "--episodes", "4"]) == 0
    plain = capsys.readouterr().out
    path = tmp_path / "out.gif"
    assert main(["eval", run_dir, "--episodes", "4", "--video", str(path), "--traces"]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines(keepends=True)
    assert "".join(rest) == plain
    trained = load_trained(Path(run_dir))
    evaluator = Evaluator(
        trained.plan.config.env, episodes=4, seed=trained.plan.env_seeds.final, max_steps=10**6
    )
    result = evaluator.run(trained.policy, env_steps=0)
    evaluator.close()
    assert first == f"episode 1: return {result.returns[0]:g}, {result.lengths[0]} steps\n"
    assert second.startswith(f"{path}: {result.lengths[0] + 1} frames")
    assert len(taken["frames"]) == result.lengths[0] + 1


@pytest.mark.parametrize("name", [*RUNS])
def test_traces_stand_beside_the_picture(
    runs: Path, taken: dict[str, list[Any]], tmp_path: Path, name: str
) -> None:
    line = ["play", str(runs / name), "--video", str(tmp_path / "out.gif"), "--max-steps", "9"]
    assert main([*line, "--seed", "3"]) == 0
    plain = taken["frames"].copy()
    taken["frames"].clear()
    assert main([*line, "--seed", "3", "--traces", "--overwrite"]) == 0
    assert len(plain) == len(taken["frames"])
    shape = taken["frames"][0].shape
    assert shape[0] >= 400
    assert shape[1] >= plain[0].shape[1] + 300
    for earlier, later in pairwise(taken["frames"]):
        assert not np.array_equal(earlier, later)


def test_a_window_shows_the_frames_until_it_is_closed(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pygame

    from rlrun.video.window import EpisodeWindow

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    seen: list[np.ndarray] = []
    add: Callable[[EpisodeWindow, np.ndarray], None] = EpisodeWindow.add

    def adding(window: EpisodeWindow, frame: np.ndarray) -> None:
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
    (["--video", "a.avi"], "--video = a.avi: its name does not say the format; .mp4 and .gif"),
    (["--video", "no/such/a.gif"], "there is no directory no/such"),
    (["--video", "old.gif"], "--video = old.gif: is there already; a new file is allowed"),
    (["--video", "a.gif", "--fps", "0"], "0 is not a number > 0"),
    (["--episodes", "0"], "0 is not an integer >= 1"),
    ([], "no window can be opened (neither DISPLAY nor WAYLAND_DISPLAY is set)"),
]


@pytest.mark.parametrize(("words", "text"), REFUSED)
def test_misuse_is_one_line_and_writes_nothing(
    runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "old.gif").write_bytes(b"old")
    assert main(["play", str(runs / "bandit"), *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert text in err
    assert main(["eval", str(runs / "bandit"), "--traces"]) == 2
    assert "--traces: is of a video; one is made by --video FILE" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["old.gif"]


LEFT = "pip install --force-reinstall --no-deps pygame-ce"  # pygame was uninstalled beside it


@pytest.mark.parametrize(
    ("module", "words", "found", "fix"),
    [
        ("imageio", ["--video", "a.mp4"], None, "[video]'"),
        ("pygame", [], None, "[video]'"),
        ("pygame", [], ModuleSpec("pygame", None), LEFT),
    ],
)
def test_a_missing_package_is_told_with_its_extra(
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    module: str,
    words: list[str],
    found: ModuleSpec | None,
    fix: str,
) -> None:
    for name in ("files", "display"):
        monkeypatch.setattr(f"rlrun.video.{name}.find_spec", lambda name: found)
    assert main(["play", str(runs / "bandit"), *words]) == 7
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert module in err
    assert fix in err


def test_what_cannot_be_drawn_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No frame has come: no file; one whose pictures end early leaves none either."""
    run_dir = tmp_path / "run"
    words = ["policy=random", "env=gym", "env.id=tests.env.walks:test/Walk-v0"]
    words += ["--trust", "tests"]
    assert main([*words, "-q", "run.eval_episodes=1", f"run.dir={run_dir}"]) == 0
    capsys.readouterr()
    assert main(["play", str(run_dir), "--video", str(tmp_path / "a.gif"), *words[-2:]]) == 2
    err = capsys.readouterr().err
    assert "it cannot be drawn (its render_modes are []" in err
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("*.gif"))


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_a_video_that_fails_leaves_nothing(tmp_path: Path, suffix: str) -> None:
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
