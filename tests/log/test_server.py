"""The server behind ``rlrun tensorboard``: started anew for new columns, and never another's."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import pytest

from rlrun.cli import tensorboard
from rlrun.errors import ResourceError
from tests.log.boards import board


def test_a_server_shows_the_runs_until_the_terminal_is_closed(tmp_path):
    """By SIGHUP; Ctrl-C ends it alike."""
    for seed in (0, 1):
        board(tmp_path / f"outputs/{seed}", seed=seed, lr=1e-3)
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "rlrun", "tensorboard", str(tmp_path / "outputs")],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
    )  # fmt: skip
    line = process.stdout.readline()
    found = re.fullmatch(r"rlrun: TensorBoard shows 2 runs at (http://127\S+:\d+/) .*\n", line)
    assert found, line
    end, names = time.monotonic() + 60, []
    while sorted(names) != ["s0", "s1"]:  # it reads them when it has begun to answer
        assert time.monotonic() < end, names
        with urlopen(f"{found[1]}data/runs", timeout=60) as answer:
            names = json.load(answer)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
    process.stdout.close()
    assert [*(tmp_path / "tmp").glob("rlrun-*")] == []
    with pytest.raises(OSError, match="refused"):
        urlopen(found[1], timeout=5)


# -- private: a browser alone would see a port that changes or another program's page --------------


class View:
    """Has new columns at the first look, none at the second; then Ctrl-C comes."""

    def __init__(self, path):
        self.directory, self.directories, self.names = path / "runs", ["outputs"], {path: "r2d2"}
        self.looks = iter([True, False])

    def refresh(self):
        try:
            return next(self.looks)
        except StopIteration:
            raise KeyboardInterrupt from None


def test_new_columns_start_the_server_anew(tmp_path, monkeypatch, capsys):
    log = []
    monkeypatch.setattr(tensorboard, "REFRESH", 0.0)
    start = start_of([sys.executable, "-c", "import time; time.sleep(60)"])
    kept = {"start": start, "wait": lambda server: None, "end": tensorboard._Server.end}

    def noted(name):
        def call(server):
            log.append(name)
            kept[name](server)

        return call

    for name in kept:
        monkeypatch.setattr(tensorboard._Server, name, noted(name))
    assert tensorboard._serve(View(tmp_path), 6006) == 0
    assert log == ["start", "wait", "end", "start", "wait", "end"]
    assert capsys.readouterr().out.count("\n") == 1, "the address is the same"


UNTIL = """
import sys, time; from pathlib import Path
while not Path(sys.argv[1]).exists(): time.sleep(0.05)
print("port in use")
"""


class Other(BaseHTTPRequestHandler):
    answers = (b'{"data_location": "/another/directory"}', b"[]", b"<html>")

    def do_GET(self):
        answer = self.answers[self.server.asked % len(self.answers)]
        self.server.asked += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer)
        if self.server.asked == 3:
            self.server.told.touch()

    def log_message(self, *args):
        pass


def test_an_answer_of_another_program_is_none(tmp_path, monkeypatch):
    other = HTTPServer(("127.0.0.1", 0), Other)
    other.asked, other.told = 0, tmp_path / "told"
    thread = threading.Thread(target=other.serve_forever)
    thread.start()
    ended = [sys.executable, "-c", UNTIL, str(other.told)]
    monkeypatch.setattr(tensorboard._Server, "start", start_of(ended))
    try:
        server = tensorboard._Server(View(tmp_path), f"http://127.0.0.1:{other.server_port}/")
        with pytest.raises(ResourceError):
            server.wait()
    finally:
        other.shutdown()
        thread.join()
        other.server_close()
    assert other.asked > 2


def start_of(line):
    def start(server):
        with server.log.open("wb") as out:
            server.process = subprocess.Popen(line, stdout=out)

    return start
