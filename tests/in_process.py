"""An in-process ``rlrun`` in an empty directory, with a stand-in for what trains and scores."""

import logging
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from rlrun.cli.main import main
from rlrun.config import Composer
from rlrun.run.files import hashes, seal
from rlrun.sweeps.fork_server import call
from rlrun.sweeps.pool import Job


@dataclass
class Launch:
    """``rlrun.run.start.Launch``, whose module imports torch."""

    config: Any
    run_dir: Path
    raw_yaml: str
    resumed: list[str] | None = None
    step: int | None = None
    own_process: bool = True


@dataclass
class Build:
    """Records calls; ``codes`` maps a seed to what its run returns or raises."""

    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    codes: dict[int, int | BaseException] = field(default_factory=dict)
    Launch = Launch

    def run(self, config: Any, run_dir: Path, **given: Any) -> int:
        self.calls.append(("run", (config, run_dir), given))
        outcome = self.codes.get(config.seed, 0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def resume(self, run_dir: Path, config: Any, **given: Any) -> int:
        self.calls.append(("resume", (run_dir, config), given))
        return 0

    def start(self, launch: Any) -> int:
        """``rlrun.run.start.start``: ``run`` or ``resume``."""
        given = {"raw_yaml": launch.raw_yaml, "own_process": launch.own_process}
        if launch.resumed is None:
            typed = yaml.safe_load((launch.run_dir / "overrides.yaml").read_text())
            return self.run(launch.config, launch.run_dir, overrides=typed, **given)
        given |= {"overrides": launch.resumed, "step": launch.step}
        return self.resume(launch.run_dir, launch.config, **given)

    def evaluate_run(self, run_dir: Path, **given: Any) -> dict[str, float]:
        self.calls.append(("eval", (run_dir,), given))
        return {}

    @property
    def config(self) -> Any:
        """The config of the last run."""
        return next(c for c in reversed(self.calls) if c[0] == "run")[1][0]

    @property
    def run_dirs(self) -> list[Path]:
        return [c[1][1] for c in self.calls if c[0] == "run"]


class InProcessPool:
    """Stands in for ``rlrun.sweeps.pool.Pool``: a job is called when it is waited for."""

    def __init__(self, workers: int, *, own_process: bool = True) -> None:
        self.workers = workers
        self.queue: list[Job] = []
        self.running: dict[int, Job] = {}
        self._count = 0

    def __enter__(self) -> "InProcessPool":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(
        self,
        function: str,
        arguments: list[Any],
        argv: list[str],
        cwd: Path,
        log: Path,
        threads: int | None,
    ) -> Job:
        job = Job(self._count, {"call": function, "arguments": arguments, "log": str(log)})
        self._count += 1
        self.queue.append(job)
        return job

    def wait_any(self, timeout: float | None = None) -> list[Job]:
        if not self.queue:
            return []
        job = self.queue.pop(0)
        job.started = job.seconds = 0.0
        with job.log.open("a") as out, redirect_stdout(out), redirect_stderr(out):
            try:
                job.code = call(job.request["call"])(*job.request["arguments"])
            except KeyboardInterrupt:
                job.code = 130
        run_dir = job.log.parent
        if job.code == 0 and not (run_dir / "run.json").exists():
            (run_dir / "run.json").write_bytes(seal({"status": "done", "files": hashes(run_dir)}))
        return [job]

    def stop_all(self) -> None:
        self.queue = []


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def unwrapped(self) -> str:
        """The output with every indented line at the end of the line before it."""
        return re.sub(r"\n +", " ", self.out)


def assert_one_error(done: Done, *facts: str, code: int = 2) -> None:
    """A command that printed one line, of its error, with these fields and values, and no more."""
    assert done.code == code, done
    assert done.out == ""
    assert re.fullmatch(r"rlrun: error: [^\n]+\n", done.err), done.err
    assert not [fact for fact in facts if fact not in done.err], (facts, done.err)


def assert_one_line(capsys: pytest.CaptureFixture[str], *facts: str) -> str:
    """One line was printed to stderr, with these fields and values; return it."""
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert not [fact for fact in facts if fact not in err], (facts, err)
    return err


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    stand_in = Build()
    names_of = {"start": ("start", "Launch"), "evaluate": ("evaluate_run",), "export": ()}
    for module, names in names_of.items():
        fake = types.ModuleType(f"rlrun.run.{module}")
        for name in names:
            setattr(fake, name, getattr(stand_in, name))
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    return stand_in


@pytest.fixture
def rlrun(
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Callable[..., Done]]:
    """Runs a command line; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlrun.sweeps.launcher.Pool", InProcessPool)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.delenv("RLRUN_DEBUG", raising=False)
    root = logging.getLogger()
    before = list(root.handlers)

    def run(*argv: str) -> Done:
        capsys.readouterr()
        code = main(list(argv))
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    yield run
    for handler in set(root.handlers) - set(before):
        handler.close()
    root.handlers = before


@pytest.fixture(scope="session")
def composer() -> Composer:
    return Composer()


def files_under(path: Path) -> list[str]:
    """Everything below ``path``, directories included."""
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))
