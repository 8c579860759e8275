"""``rlrun doctor``: the facts it names, the settings it measures, what it advises."""

import importlib.metadata
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlrun import __version__
from rlrun.cli import doctor as cli_doctor
from rlrun.config import Composer, check, read_composed
from rlrun.errors import NumericError, ResourceError
from rlrun.optim import compute
from rlrun.run import calibrate
from rlrun.run.calibrate import Bench, ComputeSetting, chosen_setting, interleave, lines, settings
from rlrun.schema import Config
from rlrun.sweeps import cores as cores_module
from tests.in_process import Done, files_under

TINY = ["policy=r2d2", "env=bandit", "debug=smoke", "memory.hidden=4", "learner.batch_size=4"]


@pytest.fixture
def bf16_lstm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU whose oneDNN has one, as not all do; for the others see test_precision."""
    monkeypatch.setattr(compute, "cpu_has_bf16_lstm", lambda: True)


def config_of(composer: Composer, *overrides: str) -> Config:
    return read_composed(composer.compose(overrides))


# -- facts -----------------------------------------------------------------------------------------


def test_facts(rlrun: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    done = rlrun("doctor")
    assert (done.code, done.err) == (0, "")
    facts = {name: text for name, text in (li.split(None, 1) for li in done.out.splitlines())}
    cuda = [name for name in facts if name.startswith("cuda")]
    expected = ["rlrun", "python", "numpy", "gymnasium", "hydra-core", "numba", "torch", *cuda]
    expected += ["cpu", "bf16", "kernels", "cores", "load", "OMP_NUM_THREADS", "memory", "extras"]
    assert list(facts) == expected
    assert cuda
    assert facts["rlrun"] == __version__
    assert facts["OMP_NUM_THREADS"] == "3"
    for name in ("numpy", "gymnasium", "hydra-core"):
        assert facts[name] == importlib.metadata.version(name)
    assert facts["cores"].startswith(str(os.cpu_count()))
    assert facts["memory"].endswith("B free")
    assert files_under(tmp_path) == []


def test_environment(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    done = rlrun("doctor", "env=tmaze", "env.length=3")
    assert (done.code, done.err) == (0, "")
    *checks, last = done.out.splitlines()
    assert [line.split("  ")[0] for line in checks] == ["ok"] * 8
    assert last == "rlrun/TMaze-v0: no finding (rlrun help environment checks)"
    done = rlrun("doctor", "env=gym", "env.id=Nowhere-v0")
    assert (done.code, done.out) == (2, "")
    assert "env.id = Nowhere-v0: no such environment" in done.err
    done = rlrun("doctor", "env=tmaze", "env.size=3")
    assert (done.code, done.out) == (2, "")
    assert files_under(tmp_path) == []


X86 = "processor : 0\nmodel name\t: Big CPU @ 3 GHz\nflags\t\t: fpu avx2{}\n\n"
ARM = "processor : 0\nFeatures\t: fp asimd{}\n"


@pytest.mark.parametrize(
    ("cpuinfo", "bf16"),
    [
        (X86.format(" avx512_bf16"), "avx512_bf16 yes, amx_bf16 no"),
        (X86.format(" avx512_bf16 amx_bf16"), "avx512_bf16 yes, amx_bf16 yes"),
        (X86.format(""), "avx512_bf16 no, amx_bf16 no: learner.precision=bf16 is hardly faster"),
        (ARM.format(" bf16"), "bf16 yes"),
        (ARM.format(" i8mm"), "bf16 no: "),
        ("", "unknown"),
    ],
)
def test_cpu(cpuinfo: str, bf16: str) -> None:
    found = dict(cli_doctor.cpu_facts(cpuinfo))
    assert found["bf16"].startswith(bf16)
    assert found["bf16"].endswith("faster here") == ("yes" not in bf16 and bf16 != "unknown")
    assert (found["cpu"] == "Big CPU @ 3 GHz") == ("Big" in cpuinfo)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores_module.cgroup_quota(tmp_path) == cores


@pytest.mark.parametrize(
    ("affinity", "share", "text", "usable"),
    [
        (8, None, "8", 8),
        (4, None, "8, of which this process may use 4 by affinity; ", 4),
        (8, 2.5, "8, of which this process may use 2.5 by cgroup; ", 2),
        (4, 0.5, "8, of which this process may use 4 by affinity, 0.5 by cgroup; ", 1),
        (8, 16.0, "8", 8),
    ],
)
def test_cores(
    monkeypatch: pytest.MonkeyPatch, affinity: int, share: float | None, text: str, usable: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for module in (cli_doctor, cores_module):
        monkeypatch.setattr(module, "affinity", lambda: affinity)
        monkeypatch.setattr(module, "cgroup_quota", lambda root=None: share)
    fix = f"the rule for threads counts 8: set learner.threads={usable} or less"
    assert cli_doctor.cores() == text + (fix if ";" in text else "")
    assert cli_doctor.usable_cores() == usable


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = ["numpy>=2.0", 'numpy>=2; extra == "here"', "rich; extra == 'half'"]
    requires += ["no-such.package<2; python_version > '3' and extra == 'half'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires)
    assert cli_doctor.extras() == "here yes, half no (no-such.package missing)"
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: None)
    assert cli_doctor.extras() == "none"

    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert cli_doctor.extras().startswith("unknown: ")


def test_extras_of_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extra that brings another package's extra needs what that one brings, not its name."""
    lists = {
        "rlrun": ['numpy[robot]>=2; extra == "robot"', 'rlrun[robot,more]; extra == "all"',
                  'rich; extra == "more"'],
        "numpy": ['no-robot>=1; python_version < "3.99" and extra == "robot"', 'rich; extra == "x"',
                  'no-later; python_version >= "3.99" and extra == "robot"'],
    }  # fmt: skip
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lists[name])
    robot = "no (no-robot missing)"
    assert cli_doctor.extras() == f"robot {robot}, all {robot}, more yes"


def test_numba_that_is_not_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.jit.COMPILED", False)
    monkeypatch.delenv("RLRUN_NUMBA", raising=False)
    assert "not in use (it cannot be imported)" in dict(cli_doctor.facts())["numba"]
    monkeypatch.setenv("RLRUN_NUMBA", "0")
    assert "not in use (RLRUN_NUMBA=0)" in dict(cli_doctor.facts())["numba"]


# -- usage -----------------------------------------------------------------------------------------

USAGE = [
    ("--calibrate policy=random", "policy.name = random: it samples from no replay"),
    ("--calibrate policy=r2d2 memory.hiden=3", "memory.hiden"),
    ("--calibrate policy=r2d3", "policy = r2d3"),
    ("--calibrate learner.batch_size=0", "learner.batch_size = 0"),
    ("--calibrate seed=0,1", "seed"),
    ("--calibrate --config-dir nowhere", "--config-dir = nowhere"),
    ("--calibrate --seconds 0", "0 is not a number > 0"),
    ("--calibrate --seconds nan", "nan is not a number > 0"),
    ("--calibrate --seconds x", "x is not a number > 0"),
    ("--calibrate -m seed=0", "unrecognized arguments: -m"),
    ("policy=r2d2", "rlrun doctor: policy=r2d2: only --calibrate takes more"),
    ("--seconds 3", "rlrun doctor: --seconds: only --calibrate takes more"),
]


@pytest.mark.parametrize(("line", "text"), USAGE, ids=[line for line, _ in USAGE])
def test_usage(
    rlrun: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    line: str,
    text: str,
) -> None:
    monkeypatch.setattr(calibrate, "measure", None)  # nothing gets that far
    done = rlrun("doctor", *line.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("rlrun: error: ")
    assert done.err.count("\n") == 1
    assert text in done.err
    assert files_under(tmp_path) == []


def test_help(rlrun: Callable[..., Done], capsys: pytest.CaptureFixture[str]) -> None:
    assert "rlrun doctor" in rlrun("--help").out
    assert "did you mean rlrun doctor?" in rlrun("docter").err
    with pytest.raises(SystemExit) as left:
        rlrun("doctor", "--help")
    assert left.value.code == 0
    assert "--calibrate" in capsys.readouterr().out


# -- calibrating -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("bf16_lstm")
def test_settings(composer: Composer) -> None:
    both = ("float32", "bf16")
    tiny = config_of(composer, *TINY)
    assert settings(tiny, 1) == [ComputeSetting(1, False, p) for p in both]
    assert settings(tiny, 2) == [
        ComputeSetting(n, t, p) for p in both for t in (False, True) for n in (1, 2)
    ]
    counts = sorted({s.threads for s in settings(tiny, 6)})
    assert counts == [1, 2, 4, 6]
    given = config_of(composer, *TINY, "learner.threads=3", "learner.precision=bf16")
    assert chosen_setting(given) == ComputeSetting(3, False, "bf16")
    assert chosen_setting(given) in settings(given, 2)
    dqn = config_of(composer, "policy=dqn", "env=bandit", "learner.target_thread=true")
    assert {s.target_thread for s in settings(dqn, 2)} == {None}
    assert chosen_setting(dqn) in settings(dqn, 2)
    sac = config_of(composer, "policy=sac", "env=pendulum")
    assert {s.target_thread for s in settings(sac, 2)} == {False, True}
    cuda = replace(tiny, device="cuda")
    assert settings(cuda, 8) == [ComputeSetting(1, False, p) for p in both]


@pytest.mark.usefixtures("bf16_lstm")
def test_lines(composer: Composer) -> None:
    asked: list[Any] = []

    def measure(
        config: Config, tried: Sequence[ComputeSetting], seconds: float
    ) -> list[list[float]]:
        asked.append((config, seconds))
        by_threads = {1: [5.0, 4.0, 6.0], 2: [2.0, 3.0, 2.5]}
        return [
            [v - 1.9 * (s.precision == "bf16") - 0.1 * bool(s.target_thread) for v in values]
            for s in tried
            for values in [by_threads[s.threads]]
        ]

    config = config_of(composer, *TINY)
    out = list(lines(config, cores=2, seconds=None, measure=measure))
    assert asked == [(config, 1.25)]
    out = [line for line in out if not line.startswith("load ")]
    assert out[0].startswith("one update of r2d2 on ")
    assert "4 windows, lstm 4; 2 cores; 8 settings, 1.25 s each" in out[0]
    assert out.pop(1) == "backend numpy: linear layers and an LSTM in float32 on the CPU"
    assert [line.split() for line in out[1:4]] == [
        ["threads", "target_thread", "precision", "ms", "range"],
        ["1", "false", "float32", "5", "4..6", "*"],
        ["2", "false", "float32", "2.5", "2..3"],
    ]
    assert len([line for line in out if line.endswith("*")]) == 1
    assert out[10].startswith("* this command's")
    assert out[11:] == [
        "fastest in float32 (0.48 of this command's time):",
        "  learner.threads=2 learner.target_thread=true learner.precision=float32",
        "fastest of all (0.21 of that; bf16 changes the numbers):",
        "  learner.threads=2 learner.target_thread=true learner.precision=bf16",
    ]
    for line in (out[12], out[14]):
        chosen = config_of(composer, *TINY, *line.split())
        check(chosen)
        assert chosen_setting(chosen).overrides() == line.strip()


def test_what_is_not_clearly_faster_is_called_noise(composer: Composer) -> None:
    def measure(
        config: Config, tried: Sequence[ComputeSetting], seconds: float
    ) -> list[list[float]]:
        assert seconds == 0.5
        return [[9.0 - s.threads, 6.0 - s.threads] for s in tried]

    line = ["policy=dqn", "env=bandit", "learner.threads=1"]
    out = list(lines(config_of(composer, *line), cores=2, seconds=0.5, measure=measure))
    assert out[-4:] == [
        "fastest in float32 (within the noise, 0.85 of this command's time):",
        "  learner.threads=2 learner.precision=float32",
        "fastest of all (the same):",
        "  learner.threads=2 learner.precision=float32",
    ]
    line[-1] = "learner.threads=2"
    out = list(lines(config_of(composer, *line), cores=2, seconds=0.5, measure=measure))
    assert out[-4] == "fastest in float32 (this command's):"


def test_interleaving(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], []

    def block(name: str, cost: float) -> Callable[[int], float]:
        def run(updates: int) -> float:
            calls.append((name, updates))
            now[0] += cost * updates
            return cost * 1e3

        return run

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    values = interleave([block("slow", 10.0), block("quick", 0.1)], 1.0)
    assert values == [[10_000.0] * 2, [100.0] * 2]  # two rounds, however long they take
    first = [("slow", 1), ("quick", 1)]
    forth, back = (
        [("slow", 1), ("quick", 1), ("quick", 2)],
        [("quick", 1), ("quick", 2), ("slow", 1)],
    )
    assert calls == [*first, *first, *forth, *back]
    now[0], start = 0.0, 1.0
    values = interleave([block("a", 0.01), block("b", 0.01)], start)
    assert 4 <= len(values[0]) == len(values[1]) <= 5
    assert now[0] <= 2 * start + 0.1


def test_a_real_one(
    rlrun: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also: what the config would write to the disk is not written."""
    monkeypatch.setattr(cli_doctor, "usable_cores", lambda: 1)
    mmap = f"buffer.mmap={tmp_path / 'rows'}"
    done = rlrun("doctor", TINY[0], mmap, "--calibrate", *TINY[1:], "--seconds", "0.01")
    assert (done.code, done.err) == (0, "")
    table = [line.split() for line in done.out.splitlines() if line[:1].isdecimal()]
    has = compute.cpu_has_bf16_lstm()
    precisions = ["float32", "bf16"] if has else ["float32"]
    assert [row[:3] for row in table] == [["1", "false", p] for p in precisions]
    assert ("bf16 is left out: " in done.out) != has
    for row in table:
        low, high = map(float, row[4].split(".."))
        assert 0 < low <= float(row[3]) <= high
    assert done.out.splitlines()[-1].startswith("  learner.threads=1 learner.target_thread=false ")
    assert files_under(tmp_path) == []


def test_a_process_that_fails() -> None:
    bench = Bench(None, [])  # type: ignore[arg-type]
    try:
        with pytest.raises(RuntimeError, match=r"^AttributeError: 'NoneType'") as failed:
            bench(1)
        assert "Traceback" in failed.value.__notes__[0]
        assert bench.process.pid is not None
        os.kill(bench.process.pid, signal.SIGKILL)
        with pytest.raises(ResourceError, match="exit code -9"):
            bench(1)
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("error", "code"), [(NumericError("diverged"), 4), (MemoryError("all"), 7), (KeyError("x"), 9)]
)
def test_errors_while_measuring(
    rlrun: Callable[..., Done],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: Exception,
    code: int,
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(calibrate, "lines", fails)
    done = rlrun("doctor", "--calibrate", *TINY)
    assert done.code == code
    assert done.err.count("\n") == 1
    assert files_under(tmp_path) == []
