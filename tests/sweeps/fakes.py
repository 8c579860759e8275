"""A pool without processes, whose jobs write the files of a run at once."""

import json
import re
from pathlib import Path
from typing import Any

from rlrun.run.files import seal
from rlrun.sweeps.pool import Job


def forge_run(path, final, curve, *, done=True):
    """The records of a run with the score ``final`` and evaluations env steps -> mean return."""
    path.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"env_steps": s, "eval/return_mean": r}) for s, r in curve.items()]
    (path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    status = "done" if done else "interrupted"
    record = {"status": status, "eval": {"return_mean": final}}
    (path / "run.json").write_bytes(seal(record))
    if not (path / "config.yaml").exists():
        (path / "config.yaml").write_text("name: run\n")


class FakePool:
    """Every ``wait_any`` ends one job, the oldest of those that are through.

    ``score``: settings of a run -> its score, or an exit code as text. Evaluations at 10, 20 …
    100 env steps show the score from the start on; at every wait a run comes ``speed`` env steps
    further, a function of the name of its directory. ``fails``: name -> env steps at which a run
    ends with exit code 4.
    """

    def __init__(self, workers, score, *, speed=lambda name: 10, fails=None):
        self.workers, self.score = workers, score
        self._speed, self._fails = speed, fails or {}
        self.started: list[str] = []  # names of run directories
        self.resumed: list[str] = []
        self.stopped: list[str] = []
        self.settings: list[dict[str, str]] = []
        self._running: dict[Job, dict[str, str]] = {}
        self._steps: dict[Job, int] = {}

    def submit(self, function, arguments, words, cwd, log, threads):
        assert len(self._running) < self.workers
        (argv,) = arguments
        job = Job(len(self.started) + len(self.resumed), {"log": str(log)})
        if argv[0] == "resume":
            self.resumed.append(Path(argv[1]).name)
            settings = json.loads((Path(argv[1]) / "config.yaml").read_text())
        else:
            settings = dict(text.split("=", 1) for text in argv)
            settings["run.dir"] = settings["run.dir"].strip("'")
            path = Path(settings["run.dir"])
            assert not path.exists(), "a run needs a new directory"
            path.mkdir(parents=True)
            (path / "config.yaml").write_text(json.dumps(settings))  # run.json comes later
            self.started.append(path.name)
        self.settings.append(settings)
        self._running[job], self._steps[job] = settings, 0
        return job

    def wait_any(self, timeout=None):
        for job, settings in [*self._running.items()]:
            name = Path(settings["run.dir"]).name
            last = self._fails.get(name, 100)
            if self._steps[job] < last:
                self._steps[job] = min(last, self._steps[job] + self._speed(name))
            self._write(job, settings, done=False)
            if self._steps[job] == last < 100:
                self._end(job, 4)
                return [job]
        ready = [job for job, steps in self._steps.items() if steps >= 100]
        if not ready:
            return []
        job = ready[0]
        self._end(job, self._write(job, self._running[job], done=True))
        return [job]

    def stop(self, job, number=15):
        path = Path(self._running[job]["run.dir"])
        assert path.name not in self.stopped, "a second signal would end a run at once"
        self.stopped.append(path.name)
        self._steps[job] = 100

    def _write(self, job, settings, *, done):
        score: Any = self.score(settings)
        if isinstance(score, str):
            return int(score) if done else 0
        steps = min(100, self._steps[job])
        curve = {s: score for s in range(10, steps + 1, 10)}
        forge_run(Path(settings["run.dir"]), score, curve, done=done)
        return 0

    def _end(self, job, code):
        job.code = code
        del self._running[job], self._steps[job]


def log10_of(settings, key):
    """Decimal logarithm of a number that a run was given."""
    import math

    assert re.fullmatch(r"[-+.e\d]+", settings[key])
    return math.log10(float(settings[key]))
