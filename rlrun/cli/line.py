"""A command line of overrides: what it says of its sweep, and what it starts.

``rlrun.api`` starts runs and sweeps by the same functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlrun.cli.launchers import open_resources
from rlrun.errors import ConfigError

if TYPE_CHECKING:
    from rlrun.cli.run import NewRun
    from rlrun.config import Composer


@dataclass(frozen=True)
class Line:
    """The overrides of a run or sweep, without those that only speak of the sweep."""

    composer: "Composer"
    overrides: list[str]
    directory: str | None  # of sweep.dir=PATH
    seeds: list[str]  # seeds=auto and seeds.KEY=VALUE
    quiet: bool


def read_line(composer: "Composer", overrides: Sequence[str], *, quiet: bool) -> Line:
    """The overrides as Hydra takes them. Raises: ConfigError."""
    directory, rest = _split_sweep_dir(overrides)
    seeds, rest = _split_seeds(rest)
    silent = ["logger.progress=off"] if quiet else []
    rest = open_resources(composer.rewrite(rest))
    return Line(composer, [*rest, *silent], directory, seeds, quiet)


def new_run(line: Line) -> "NewRun":
    """The run that a line asks for, checked, with a directory of its own. Raises: RlrunError."""
    from rlrun.cli.run import claim_run

    if line.seeds:
        key, _, value = line.seeds[0].partition("=")
        wrong = "only a sweep adds seeds (rlrun -m)"
        raise ConfigError(f"{key} = {value}: {wrong}; settings to compare are needed; add -m")
    if line.directory is not None:
        fix = f"add -m, or use run.dir={line.directory}"
        wrong = "only a sweep has it (rlrun -m)"
        raise ConfigError(f"sweep.dir = {line.directory}: {wrong}; {fix}")
    return claim_run(line.composer, line.overrides)


def sweep_line(line: Line) -> int:
    """Run a sweep; 0 when every job ended well, else 1."""
    from rlrun.cli.sweep import run_sweep

    overrides = [*line.overrides, *silence_launcher(line)]
    if line.seeds:
        from rlrun.cli.seeds import read_seeds, run_auto

        auto = read_seeds(line.composer, line.seeds)
        return run_auto(line.composer, overrides, line.directory, auto, quiet=line.quiet)
    return run_sweep(line.composer, overrides, line.directory, quiet=line.quiet)


def asks_for_sweep(line: Line) -> bool:
    """True where the overrides of Hydra itself ask for a sweep."""
    if not any("hydra.mode" in o for o in line.overrides):
        return False
    cfg = line.composer.compose(line.overrides, sweep=True)
    return str(cfg.hydra.mode) == "RunMode.MULTIRUN"


def _split_sweep_dir(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """(the value of ``sweep.dir=PATH``, the other overrides)."""
    given = [o for o in overrides if o.startswith("sweep.dir=")]
    rest = [o for o in overrides if o not in given]
    text = given[-1].partition("=")[2] if given else "null"
    value = text.strip("'\"")
    if value == "" or ("," in value and value == text):
        wrong = (
            f"is {'several paths' if value else 'no path'}; one is allowed, quoted if it holds a"
        )
        raise ConfigError(
            f"sweep.dir = {value}: {wrong} comma, that of a sweep adds jobs to it; give "
            "sweep.dir=PATH",
            key="sweep.dir",
        )
    return (None if text == "null" else value), rest


def _split_seeds(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """(overrides ``seeds=…`` and ``seeds.KEY=…``, the others)."""
    own = [o for o in overrides if o.partition("=")[0].partition(".")[0] == "seeds"]
    return own, [o for o in overrides if o not in own]


def silence_launcher(line: Line) -> list[str]:
    """Overrides that silence Hydra's launcher, unless its logging was asked for."""
    asked = any("hydra_logging" in o for o in line.overrides)
    return ["hydra/hydra_logging=none"] if line.quiet and not asked else []
