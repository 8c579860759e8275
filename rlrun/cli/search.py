"""``rlrun search``: checks its command line, makes its directory, and continues a search."""

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rlrun.config import Composer
from rlrun.config.config_errors import config_error
from rlrun.config.directories import claim, study_directory
from rlrun.config.hydra_keys import ADDRESSES
from rlrun.config.reader import read_dataclass
from rlrun.config.space import Dimension, check_space, read_settings, split_space
from rlrun.errors import CheckpointError, RlrunError
from rlrun.pipeline.stop import stop_on_signals
from rlrun.run import files
from rlrun.schema import Config
from rlrun.schema.override import Override, read_overrides, split_node
from rlrun.schema.studies import SearchConfig
from rlrun.sweeps.pool import Pool
from rlrun.sweeps.search import NAME, Rung, Search, SearchResult, Study, import_optuna, make_rungs

MARKER = "search.json"  # file of a search directory, written first
RESULT = "result.json"
_MOST_SEEDS = 2**32


def search(args: Namespace) -> int:
    """Search for the best setting. Return 0, or 1 if not every fresh seed was completed."""
    _, result = run_search(args.overrides, config_dir=args.config_dir, quiet=args.quiet)
    return int(bool(result.failed))


def run_search(
    typed: Sequence[str],
    *,
    config_dir: str | os.PathLike[str] | None,
    quiet: bool,
    own_process: bool = True,
) -> tuple[Path, SearchResult]:
    """Search. Return its directory and the result.

    ``own_process``: False in a user's process.

    Raises: RlrunError with exit code 1 if no trial was completed.
    """
    config_dir = None if config_dir is None else str(Path(config_dir).absolute())
    composer = Composer(config_dir=config_dir)
    search_keys, rest = split_node(read_overrides(typed), "search")
    settings: SearchConfig = read_settings(composer, "search", search_keys)
    plan = _plan(composer, settings, rest)
    last = plan.config.seed + settings.seeds + settings.final_seeds - 1
    if last >= _MOST_SEEDS:
        wrong, allowed = f"the last seed of the search would be {last}", "seeds within [0, 2^32)"
        raise config_error("seed", plan.config.seed, wrong, allowed, "lower it")
    import_optuna()
    path = study_directory("search.dir", settings.dir, lambda path: False)
    directory = claim(path, exact=True, key="search.dir")
    content = {
        "overrides": plan.fixed, "space": [o for o in rest if o not in plan.fixed],
        "settings": asdict(settings), "config_dir": config_dir,
    }  # fmt: skip
    files.replace_file(directory / MARKER, files.seal(content))
    return directory, _search(directory, plan, config_dir, quiet, own_process)


def resume_search(directory: Path, overrides: Sequence[Override], *, quiet: bool) -> int:
    """Continue the search in ``directory``. search.trials and addresses may change.

    Raises: ConfigError, CheckpointError if search.json is damaged.
    """
    files.require_regular_files(directory)
    content = _read_marker(directory)
    composer = Composer(config_dir=content["config_dir"])
    settings: SearchConfig = read_dataclass(SearchConfig, content["settings"], "search")
    addresses = {o.key: o for o in overrides if o.key in ADDRESSES}
    if changes := [o for o in overrides if o.key not in addresses]:
        if refused := next((o for o in changes if o.key != "search.trials"), None):
            wrong, allowed = "a resumed search cannot change this", "search.trials may change"
            fix = "start a new search with another search.dir"
            raise config_error(refused.key, refused.value, wrong, allowed, fix)
        settings = replace(settings, trials=read_settings(composer, "search", changes).trials)
        content["settings"]["trials"] = settings.trials
    kept = [o for o in read_overrides(content["overrides"]) if o.key not in addresses]
    content["overrides"] = [*kept, *addresses.values()]
    words = [*content["overrides"], *content["space"]]
    plan = _plan(composer, settings, words, typed=[*addresses.values()])
    if overrides:
        files.replace_file(directory / MARKER, files.seal(content))
    return int(bool(_search(directory, plan, content["config_dir"], quiet).failed))


@dataclass(frozen=True)
class _Plan:
    """A checked search. ``fixed``: overrides of every run. ``config``: of the first one."""

    settings: SearchConfig
    fixed: Sequence[str]
    space: Sequence[Dimension]
    config: Config
    rungs: list[Rung]


def _plan(
    composer: Composer,
    settings: SearchConfig,
    words: Sequence[str],
    typed: Sequence[Override] | None = None,
) -> _Plan:
    """Return the search that ``words`` ask for. ``typed``: as for ``check_space``."""
    fixed, space = split_space(composer, words)
    config = check_space(composer, fixed, space, typed=typed)
    return _Plan(settings, fixed, space, config, _rungs(config, settings))


def _search(
    directory: Path, plan: _Plan, config_dir: str | None, quiet: bool, own_process: bool = True
) -> SearchResult:
    settings = plan.settings

    def say(line: str) -> None:
        if not quiet:
            print(line, flush=True)

    flags = [] if config_dir is None else ["--config-dir", config_dir]
    with files.lock_run_dir(directory), stop_on_signals(own_process=own_process) as stop:
        study = Study(directory / NAME, plan.space, sampler=settings.sampler, seed=settings.seed)
        how = f"{settings.trials} trials of {settings.seeds} seeds"
        say(f"search in {directory}: {how}, {settings.workers} runs at a time")
        search = Search(
            directory, study, settings, fixed=plan.fixed, first_seed=plan.config.seed,
            rungs=plan.rungs, flags=flags, say=say, stop_code=lambda: stop.code if stop() else None,
        )  # fmt: skip
        with Pool(settings.workers, own_process=own_process) as pool:
            result = search.run(pool)
    if result is None:
        raise RlrunError(f"no trial ended well: see {directory}/console").with_code(1)
    files.replace_file(directory / RESULT, json.dumps(result.to_dict(), indent=1).encode() + b"\n")
    for line in result.lines(study.trials()):
        say(line)
    say(f"rlrun {' '.join([*plan.fixed, *result.selection.overrides])}")
    return result


def _rungs(config: Config, settings: SearchConfig) -> list[Rung]:
    if settings.prune == "none":
        return []
    rungs = make_rungs(
        config.run.total_steps, config.run.eval_every, seeds=settings.seeds,
        reduction=settings.reduction, count=settings.rungs,
    )  # fmt: skip
    if not rungs:
        wrong = f"no run is evaluated before its end (run.eval_every = {config.run.eval_every})"
        allowed = "asha with a rung after an evaluation, or none"
        raise config_error("search.prune", "asha", wrong, allowed, "lower run.eval_every")
    return rungs


def _read_marker(directory: Path) -> dict[str, Any]:
    """Return the content of search.json, checked for its types."""
    path = directory / MARKER
    try:
        content = files.unseal(files.read_file(path))
        texts = [*content["overrides"], *content["space"], content["config_dir"] or ""]
        if not (isinstance(content["settings"], dict) and all(isinstance(t, str) for t in texts)):
            raise ValueError("other types")
        return content
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as e:
        raise CheckpointError(
            f"{path}: is damaged ({e}); it must be as rlrun wrote it; restore it from a copy"
        ) from e
