"""``rlrun doctor``: facts for a bug report, symptoms of runs, and checks of an environment."""

import importlib.metadata
import logging
import os
import platform
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from packaging.requirements import Requirement

from rlrun.errors import ConfigError, printable
from rlrun.sweeps.pool import affinity, cgroup_quota, usable_cores
from rlrun.terminal import paragraph
from rlrun.version import rlrun_version

_PACKAGES = ("numpy", "gymnasium", "hydra-core")
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_BF16: tuple[str, ...] = ("avx512_bf16", "amx_bf16")  # that make bfloat16 products fast
Fact = tuple[str, str]  # name, value


def doctor(args: Namespace) -> int:
    """Print findings on runs or an environment, or one fact on this machine per line.

    The exit code is 0 with and without findings, because they are advice, not a verdict.
    """
    words = args.words
    if words and args.config_dir is None and all(os.path.lexists(w) or "=" not in w for w in words):
        from rlrun.reports.doctor.diagnosis import report_lines
        from rlrun.reports.runs import read_runs

        for run in read_runs(words):
            for line in report_lines(run):
                print(line, flush=True)
    elif any(word.startswith("env=") for word in words):
        _examine_environment(words, args.config_dir)
    elif words or args.config_dir:
        wrong = "of a command's words env=NAME env.KEY=VALUE are allowed; add env=NAME"
        raise ConfigError(f"rlrun doctor: {[*words, '--config-dir'][0]}: {wrong}")
    else:
        for name, value in facts():
            print(paragraph(f"{name:<16}", value), flush=True)
    return 0


def facts() -> Iterator[Fact]:
    """Yield versions, hardware and limits of this machine."""
    yield "rlrun", rlrun_version()
    yield "python", f"{platform.python_version()} on {platform.platform()}"
    yield from ((name, _version(name)) for name in _PACKAGES)
    yield "numba", _numba()
    yield from _torch()
    cpuinfo = ""
    with suppress(OSError, UnicodeDecodeError):
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    yield from cpu_facts(cpuinfo)
    from rlrun import blas
    from rlrun.config.backend import KERNELS, RECURRENT_KERNELS

    yield "blas", blas.description()
    names = ", ".join(KERNELS | RECURRENT_KERNELS)
    yield "kernels", f"numpy updates of policy={names} where learner.backend can"
    yield "cores", cores()
    if hasattr(os, "getloadavg"):
        yield "load", f"{os.getloadavg()[0]:.1f} over the last minute"
    yield from ((name, os.environ[name]) for name in _VARIABLES if name in os.environ)
    from rlrun.buffer.layout import amount, free_bytes

    yield "memory", f"{amount(free_bytes(None))} free"
    yield "extras", extras()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _numba() -> str:
    from rlrun.jit import COMPILED

    if COMPILED:
        return f"{_version('numba')}, in use"
    variables = {f"{name}={value}" for name, value in os.environ.items()}
    disabled = [line for line in ("RLRUN_NUMBA=0", "NUMBA_DISABLE_JIT=1") if line in variables]
    why = disabled[0] if disabled else "it cannot be imported"
    return f"{_version('numba')}, not in use ({why}): the replay computes in numpy, slower"


def _torch() -> Iterator[Fact]:
    """Yield the version, then a line for every CUDA device, or why there is none."""
    try:
        import torch
    except (ImportError, OSError) as e:  # OSError: a library cannot be loaded
        yield "torch", f"{_version('torch')}, cannot be imported: {' '.join(str(e).split())}"
        return
    yield "torch", torch.__version__
    if not torch.cuda.is_available():
        from rlrun.config.checks import cuda_devices

        count, why = cuda_devices()
        unusable = f"the driver has {count} devices that torch cannot use"
        yield "cuda", f"none: {unusable if count else why}"
        return
    from rlrun.buffer.layout import amount

    for i in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(i)
        yield f"cuda:{i}", f"{device.name}, {amount(device.total_memory)}"


def cpu_facts(cpuinfo: str) -> Iterator[Fact]:
    """Yield model and bfloat16 instructions from the text of /proc/cpuinfo, which may be empty."""
    fields = dict(re.findall(r"^(model name|flags|Features)\s*: *(.*\S)", cpuinfo, re.MULTILINE))
    yield "cpu", fields.get("model name") or platform.processor() or platform.machine()
    names, features = _BF16, fields.get("flags")
    if "Features" in fields:
        names, features = ("bf16",), fields["Features"]
    if features is None:
        yield "bf16", "unknown: this system does not tell what the CPU has"
        return
    has = {name: name in features.split() for name in names}
    text = ", ".join(f"{name} {'yes' if present else 'no'}" for name, present in has.items())
    hint = "" if any(has.values()) else ": learner.precision=bf16 is hardly faster here"
    yield "bf16", text + hint


def cores() -> str:
    """Return the cores of the machine and, if fewer, those that this process may use."""
    count, allowed, share = os.cpu_count() or 1, affinity(), cgroup_quota()
    limits = [f"{allowed} by affinity"] if allowed < count else []
    limits += [f"{share:g} by cgroup"] if share is not None and share < count else []
    if not limits:
        return str(count)
    fix = f"the rule for threads counts {count}: set learner.threads={usable_cores()} or less"
    return f"{count}, of which this process may use {', '.join(limits)}; {fix}"


def extras() -> str:
    """Return the optional extras of the package: installed or not, with the missing packages."""
    try:
        names = importlib.metadata.metadata("rlrun").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        return "unknown: rlrun runs from a checkout that is not installed"
    texts = []
    for name in names:
        missing = [p for p in _packages_of_extra("rlrun", name) if _version(p) == "not installed"]
        without = ".gif only" if name == "video" else "no"
        lack = f"{without} ({', '.join(missing)} missing)"
        texts.append(f"{name} {lack if missing else 'yes'}")
    return ", ".join(texts) or "none"


def _packages_of_extra(package: str, extra: str) -> list[str]:
    """Return the packages that ``package[extra]`` installs here, with nested extras."""
    try:
        requires = map(Requirement, importlib.metadata.requires(package) or [])
    except importlib.metadata.PackageNotFoundError:
        return [package]
    packages: list[str] = []
    for needed in requires:
        marker = needed.marker
        if marker and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            parts = sorted(needed.extras)
            inside = [p for part in parts for p in _packages_of_extra(needed.name, part)]
            packages += inside or [needed.name]
    return list(dict.fromkeys(packages))


def _examine_environment(overrides: Sequence[str], config_dir: str | None) -> None:
    """Print one line per check of the environment of ``overrides``.

    Raises: ConfigError if there is no such environment, or it cannot be made.
    """
    from rlrun.config import Composer
    from rlrun.config.compose import read_presets
    from rlrun.config.hydra_keys import check_values
    from rlrun.env.examine import FINDING, examine

    composer = Composer(config_dir=config_dir)
    if not any(text.startswith("policy=") for text in overrides):
        overrides = ["policy=random", *overrides]  # any spaces
    typed = composer.rewrite(overrides)
    config = read_presets(composer, composer.compose(typed), typed)
    check_values(config, typed)
    count = 0
    logging.disable(logging.WARNING)  # the checks report what would be logged
    try:
        for check in examine(config.env, config.agents):
            label, text = f"{check.verdict:<15}{check.name:<20}", printable(check.text)
            print(paragraph(label, text), flush=True)
            count += check.verdict == FINDING
    finally:
        logging.disable(logging.NOTSET)
    number = {0: "no finding", 1: "1 finding"}.get(count, f"{count} findings")
    end = printable(f"{config.env.id}: {number} (rlrun help environment checks)")
    print(paragraph(end), flush=True)
