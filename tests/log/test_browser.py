"""``rlrun tensorboard`` in headless Chromium: names, rows, pages of charts, pictures."""

import os
import re
import signal
import subprocess
import sys
import time
from urllib.request import urlopen

import pytest

from tests.log.boards import board
from tests.reports.browser import PROGRAM, Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="needs chromium"),
]
NAMES = [f"s{seed}-lr{lr}" for seed in (0, 1) for lr in ("1e-3", "1e-4")]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(address, process) of the viewer on four runs of a sweep."""
    path = tmp_path_factory.mktemp("boards")
    for seed in (0, 1):
        for lr in (1e-3, 1e-4):
            board(path / f"outputs/{seed}_{lr}", seed=seed, lr=lr)
    (path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "rlrun", "tensorboard", str(path / "outputs")],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(path / "tmp")},
    )  # fmt: skip
    line = process.stdout.readline()
    found = re.fullmatch(r"rlrun: TensorBoard shows 4 runs at (http://127\S+:\d+/) .*\n", line)
    assert found, line
    yield found[1], process
    process.send_signal(signal.SIGHUP)  # a terminal that is closed; Ctrl-C ends it alike
    assert process.wait(20) == 0
    process.stdout.close()
    assert list((path / "tmp").glob("rlrun-*")) == []
    with pytest.raises(OSError, match="refused"):
        urlopen(found[1], timeout=5)


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


def test_rows(served, browser):
    """What differs comes first, then what does not; final and best score, steps, wall."""
    browser.visit(f"{served[0]}#hparams", width=1800)
    text = browser.wait_for("Trial ID", *NAMES, "wall seconds")
    lines = text.split("\n")
    head = lines[lines.index("Trial ID") :]
    columns = [x for x in head if x in (*COLUMNS, *METRICS)]
    assert columns[: len(COLUMNS)] == COLUMNS
    assert [x for x in columns if x in METRICS][:4] == METRICS
    assert "run.total_steps" not in text, "typed, but the same everywhere"
    assert "3000.0" in text


COLUMNS = ["policy.lr", "seed", "env", "policy"]
METRICS = ["final score", "best score", "env steps", "wall seconds"]


def test_pages_of_charts(served, browser):
    browser.visit(f"{served[0]}#custom_scalars")
    text = browser.wait_for("score", "R2D2", "return, worst to best episode", *NAMES)
    lines = text.split("\n")
    assert lines.index("score") < lines.index("R2D2") < lines.index("learning")
    for chart in (
        "delta Q from stored states",
        "age of sampled rows, env steps",
        "effective sample size of the priorities",
        "spread of the importance weights",
    ):
        assert chart in text
    assert "codec" not in lines, "no chart is empty"
    assert "epsilon" not in lines


def test_pictures_and_scalars(served, browser):
    browser.visit(f"{served[0]}#images")
    browser.wait_for("windows/sampled")
    end = time.monotonic() + 20
    while not (shown := [size for size in browser.images() if min(size) > 60]):
        assert time.monotonic() < end, browser.images()
        time.sleep(0.2)
    assert shown[0][0] >= 620, "the picture is loaded in its own size"
    browser.visit(f"{served[0]}#timeseries")
    browser.wait_for(*NAMES, "buffer", "windows", "Pinned")
