"""``rlrun doctor``: the facts it names."""

import importlib.metadata
import os
from types import SimpleNamespace

import pytest

from rlrun import __version__
from rlrun.cli import doctor as cli_doctor
from rlrun.sweeps import pool as pool_module
from tests.in_process import assert_one_error, files_under

# -- facts -----------------------------------------------------------------------------------------


def facts_of(rlrun):
    done = rlrun("doctor")
    assert (done.code, done.err) == (0, "")
    return {name: text for name, text in (li.split(None, 1) for li in done.unwrapped.splitlines())}


def test_facts(rlrun, monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    facts = facts_of(rlrun)
    names = "rlrun python numpy gymnasium hydra-core numba torch cpu bf16 blas kernels cores load \
OMP_NUM_THREADS memory extras"
    assert {*names.split()} <= {*facts}
    assert any(name.startswith("cuda") for name in facts)
    assert facts["rlrun"].partition(", commit ")[0] == __version__
    assert facts["OMP_NUM_THREADS"] == "3"
    for name in ("numpy", "gymnasium", "hydra-core"):
        assert facts[name] == importlib.metadata.version(name)
    assert facts["cores"].startswith(str(os.cpu_count()))
    assert files_under(tmp_path) == []


def test_environment(rlrun, tmp_path):
    done = rlrun("doctor", "env=tmaze", "env.length=3")
    assert (done.code, done.err) == (0, "")
    *checks, last = done.unwrapped.splitlines()
    assert [line.split("  ")[0] for line in checks] == ["ok"] * 8
    assert "rlrun/TMaze-v0" in last
    for line in ("env=gym env.id=Nowhere-v0", "env=tmaze env.size=3"):
        assert_one_error(rlrun("doctor", *line.split()))
    assert files_under(tmp_path) == []


X86 = "processor : 0\nmodel name\t: Big CPU @ 3 GHz\nflags\t\t: fpu avx2{}\n\n"
ARM = "processor : 0\nFeatures\t: fp asimd{}\n"


@pytest.mark.parametrize(
    ("cpuinfo", "bf16"),
    [(X86.format(" avx512_bf16"), "avx512_bf16 yes, amx_bf16 no"),
     (X86.format(" avx512_bf16 amx_bf16"), "avx512_bf16 yes, amx_bf16 yes"),
     (X86.format(""), "avx512_bf16 no, amx_bf16 no"), (ARM.format(" bf16"), "bf16 yes"),
     (ARM.format(" i8mm"), "bf16 no"), ("", "unknown")],
)  # fmt: skip
def test_cpu(cpuinfo, bf16):
    """Private: the machine of the tests has one CPU."""
    found = dict(cli_doctor.cpu_facts(cpuinfo))
    assert found["bf16"].startswith(bf16)
    assert (found["cpu"] == "Big CPU @ 3 GHz") == ("Big" in cpuinfo)


@pytest.mark.parametrize(
    ("files", "cores"),
    [({"cpu.max": "150000 100000\n"}, 1.5), ({"cpu.max": "max 100000\n"}, None),
     ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
     ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None), ({}, None)],
)  # fmt: skip
def test_quota(tmp_path, files, cores):
    """Private: no test may set a cgroup."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert pool_module.cgroup_quota(tmp_path) == cores


@pytest.mark.parametrize(
    ("affinity", "share", "usable"),
    [(8, None, 8), (4, None, 4), (8, 2.5, 2), (4, 0.5, 1), (8, 16.0, 8)],
)
def test_cores(rlrun, monkeypatch, affinity, share, usable):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for module in (cli_doctor, pool_module):
        monkeypatch.setattr(module, "affinity", lambda: affinity)
        monkeypatch.setattr(module, "cgroup_quota", lambda root=None: share)
    text = facts_of(rlrun)["cores"]
    assert text.startswith("8")
    assert (f"learner.threads={usable}" in text) == (usable < 8)
    assert pool_module.usable_cores() == usable


def test_extras(rlrun, monkeypatch):
    """An extra that brings another package's extra needs what that one brings, not its name."""
    lists = {
        "rlrun": ["numpy>=2.0", 'numpy>=2; extra == "here"', "rich; extra == 'half'",
                  "no-such.package<2; python_version > '3' and extra == 'half'",
                  'numpy[robot]>=2; extra == "robot"', 'rlrun[robot,more]; extra == "all"',
                  'rich; extra == "more"'],
        "numpy": ['no-robot>=1; python_version < "3.99" and extra == "robot"', 'rich; extra == "x"',
                  'no-later; python_version >= "3.99" and extra == "robot"'],
    }  # fmt: skip
    described = SimpleNamespace(get_all=lambda key: ["here", "half", "robot", "all", "more"])
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lists[name])
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: described)
    text = facts_of(rlrun)["extras"]
    for fact in ("here yes", "half no (no-such.package", "robot no (no-robot ", "more yes",
                 "all no (no-robot "):  # fmt: skip
        assert fact in text
    assert "no-later" not in text

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", absent)
    assert facts_of(rlrun)["extras"].startswith("unknown")


def test_numba_that_is_not_in_use(rlrun, monkeypatch):
    monkeypatch.setattr("rlrun.jit.COMPILED", False)
    monkeypatch.setenv("RLRUN_NUMBA", "0")
    assert "RLRUN_NUMBA=0" in facts_of(rlrun)["numba"]
