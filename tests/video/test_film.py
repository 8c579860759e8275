"""run.video_every: videos of evaluations, and the same run with and without them."""

import io
import json
import shutil
import sys
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image, ImageSequence

from rlrun.cli.main import main
from rlrun.env.rows import Env
from rlrun.errors import ConfigError
from rlrun.pipeline import evaluate
from rlrun.pipeline.evaluate import FilmingEvaluator, Frames, Watch, WatchedRow
from rlrun.video.files import PALETTE, STEPS, WIDTH, Panels, diverging

LINE = (
    *("policy=dqn", "env=tmaze", "policy.noisy=0.5", "debug=smoke", "run.stop_return=null", "-q"),
    *("run.eval_every=100", "run.total_steps=400"),
)  # fmt: skip


def gif_frames(content):
    with Image.open(io.BytesIO(content)) as file:
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(file)]


def images_of(run_dir, tag):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found = {}
    for path in sorted(run_dir.glob("events.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag == tag:
                    (*_, content) = value.tensor.string_val
                    found[event.step] = content
    return found


def digest(run_dir):
    return str(json.loads((run_dir / "run.json").read_text())["digest"])


def test_a_run_with_videos_has_the_numbers_of_one_without(tmp_path):
    """Bit for bit, also resumed with them; the videos are those of the evaluations."""
    plain, filmed, resumed = (tmp_path / name for name in ("plain", "filmed", "resumed"))
    assert main([*LINE, f"run.dir={plain}"]) == 0
    assert main([*LINE, "run.video_every=200", f"run.dir={filmed}"]) == 0
    assert digest(filmed) == digest(plain)
    assert not (plain / "videos").exists()
    files = sorted((filmed / "videos").iterdir())
    assert [p.name for p in files] == [f"step_{n:012d}.gif" for n in evaluations(filmed)[1::2]]
    board = images_of(filmed, "eval/video")
    assert [*board] == evaluations(filmed)[1::2]
    assert [*board.values()] == [path.read_bytes() for path in files]
    shutil.copytree(plain, resumed)
    step = evaluations(plain)[1]
    line = ["resume", f"{resumed}@{step}", "--discard", "run.video_every=100", "-q"]
    assert main(line) == 0
    assert digest(resumed) == digest(plain)
    assert json.loads((resumed / "run.json").read_text())["exact"]
    names = [path.name for path in sorted((resumed / "videos").iterdir())]
    assert names == [f"step_{n:012d}.gif" for n in evaluations(resumed)[2:]]
    assert (resumed / "videos" / files[-1].name).read_bytes() == files[-1].read_bytes()


def evaluations(run_dir):
    lines = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [line["env_steps"] for line in lines if "eval/return_mean" in line]


def test_the_video_is_the_first_episode_of_the_evaluation(tmp_path, monkeypatch):
    """Its pictures are those of the environment after the reset and each step.

    Private: where an evaluation begins shows nowhere else.
    """
    pictures: list[np.ndarray] = []
    render = Env.render

    def rendering(env):
        pictures.append(render(env))
        return pictures[-1]

    made = FilmingEvaluator._play

    def playing(evaluator, *given):
        pictures.clear()
        made(evaluator, *given)

    monkeypatch.setattr(Env, "render", rendering)
    monkeypatch.setattr(FilmingEvaluator, "_play", playing)
    assert main([*LINE, "run.video_every=400", f"run.dir={tmp_path}"]) == 0
    (path,) = (tmp_path / "videos").iterdir()
    frames = gif_frames(path.read_bytes())
    later = [b for a, b in pairwise(pictures) if not np.array_equal(a, b)]
    distinct = [pictures[0], *later]
    assert len(frames) == len(distinct)
    assert all(np.array_equal(a, b) for a, b in zip(frames, distinct, strict=True))


def test_a_long_episode_has_a_bounded_number_of_frames(monkeypatch):
    """Every second one is dropped each time there are too many; the first and last are kept."""
    monkeypatch.setattr(evaluate, "MAX_FRAMES", 8)
    moved: list[int] = []
    frames = Frames(lambda: moved.append(1))
    frames.watch = Watch(frames.add)
    for t in range(101):
        if t % frames.watch.stride and t < 100:
            continue
        picture = np.full((200, 300, 3), t, np.uint8)
        reading: Any = None if t == 100 else object()
        frames.add(WatchedRow(picture, 0, t, 0.0, 0.0, reading))
    shown = [int(frame[0, 0, 0]) for frame in frames.frames]
    assert shown == [*range(0, 100, 16), 100]
    assert frames.watch.stride == 16


def test_videos_that_fail_are_a_warning(tmp_path, monkeypatch):
    for module in ("config.checks", "run.build"):
        monkeypatch.setattr(f"rlrun.{module}.check_video", lambda config: None)

    def failing(env):
        raise ConfigError("env.id = x: no GL")

    monkeypatch.setattr(Env, "render", failing)
    assert main([*LINE, "run.video_every=100", f"run.dir={tmp_path}"]) == 0
    (text,) = (tmp_path / "rlrun.log").read_text().splitlines()
    assert "run.video_every: env.id = x: no GL" in text
    assert not (tmp_path / "videos").exists()


def test_what_cannot_be_drawn_is_told_before_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["policy=random", "env=gym", "env.id=tests.env.walks:test/Walk-v0", "--trust", "tests"]
    assert main([*words, "run.video_every=5"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("rlrun: error: run.video_every = 5: env.id = tests.env.walks:test/Walk")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_missing_is_told_before_a_run_goes_on(tmp_path, monkeypatch, capsys):
    words = ["policy=random", "env=acrobot", "run.total_steps=50", "-q", f"run.dir={tmp_path}"]
    assert main(words) == 0
    monkeypatch.setitem(sys.modules, "pygame", None)
    more = ["resume", str(tmp_path), "run.total_steps=90", "run.video_every=5", "-q"]
    assert main(more) == 7
    assert "run.video_every = 5: " in capsys.readouterr().err
    assert "90" not in (tmp_path / "metrics.jsonl").read_text()


# -- private, as it shows to the eye alone: what is drawn beside the picture are the numbers read --


@dataclass
class Drawn:
    """A reading of an agent with two actions and three units."""

    kind: str
    values: np.ndarray
    state: np.ndarray
    action: np.ndarray


def test_panels_show_state_values_and_reward():
    """Colours of the newest column are those of its numbers; the picture is left as it is."""
    panels, picture = Panels(), np.full((400, 300, 3), 7, np.uint8)
    states = [np.array([1.0, -1.0, 0.0]), np.array([0.5, -0.25, 1.0])]
    frames = [
        panels.beside(
            picture, episode=0, t=t, reward=t, total=t,
            reading=Drawn("Q", np.array([1.0, 2.0 - 2 * t]), state, np.array(1 - t)),
        )
        for t, state in enumerate(states)
    ]  # fmt: skip
    assert [f.shape for f in frames] == [(400, 300 + WIDTH, 3)] * 2
    for frame in frames:
        assert (frame[:, :300] == 7).all()
    heat = frames[1][:, 300:]
    cell = (WIDTH - 16) / STEPS
    for t, state in enumerate(states):
        x = round(8 + (t + 0.5) * cell)
        column = {tuple(c) for c in heat[44:140, x].tolist()}  # its panel
        assert {tuple(c) for c in diverging(state).tolist()} <= column
    last = panels.beside(picture, episode=0, t=2, reward=0.0, total=1.0, reading=None)
    assert (last[44:140] == frames[1][44:140]).all()  # nothing more was computed
    anew = panels.beside(picture, episode=1, t=0, reward=0.0, total=0.0, reading=None)
    assert (anew[60:130, 320:640] == 255).mean() > 0.9


def test_the_chosen_action_has_a_dot():
    def blots(action):
        reading = Drawn("Q", np.array([1.0, 2.0]), np.zeros(0), np.array(action))
        picture = np.zeros((400, 400, 3), np.uint8)
        frame = Panels().beside(picture, episode=0, t=0, reward=0.0, total=0.0, reading=reading)
        return [int((frame == np.array(PALETTE[i])).all(-1).sum()) for i in (0, 1)]

    first, second = blots(0), blots(1)
    assert first[0] > second[0] + 10
    assert second[1] > first[1] + 10
