"""``rlrun probe``: does a task need memory? Torch-free; its runs are processes of their own."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rlrun.cli.job_runs import directory_of, run_jobs
from rlrun.config import Composer
from rlrun.config.compose import read_presets
from rlrun.config.config_errors import override_key
from rlrun.config.space import read_settings
from rlrun.errors import ConfigError, RlrunError
from rlrun.reports.bounds import return_bounds
from rlrun.reports.document import markdown, terminal_lines
from rlrun.reports.memory_bench import FULL, MEMORYLESS, RECURRENT, STACKED, MemoryGap, gap_table
from rlrun.reports.runs import score
from rlrun.run.files import replace_file
from rlrun.schema import Config, ProbeConfig
from rlrun.sweeps.record import SweepRecord, is_sweep

if TYPE_CHECKING:
    from pathlib import Path

    from rlrun.reports.runs import RunData

PAGE = "probe.md"  # what is written into probe.dir
_CHOSEN = ("policy", "memory", "seed", "run.dir", "sweep.dir", "run.total_steps", "run.stop_value")
_MASK = "action_mask"  # entry of an observation that says which actions are allowed
_UNSTACKED = "No frame-stacked agent: stacked, the observation would lose its action mask."
_FULL_STATE = "full_state"  # argument of an environment that can show its state


def probe(args: Namespace) -> int:
    """Train agents with and without memory, and say whether the task needs it."""
    budget = [] if args.budget is None else [f"probe.budget={args.budget}"]
    flags = ["-q"] * args.quiet + (["-cd", args.config_dir] if args.config_dir else [])
    probe_task([*args.overrides, *budget], args.config_dir, flags, quiet=args.quiet)
    return 0


def probe_task(
    overrides: Sequence[str], config_dir: str | None, flags: Sequence[str], *, quiet: bool
) -> MemoryGap:
    """Train the agents that are missing in probe.dir, print the gap, return it.

    Raises: ConfigError before any run starts; RlrunError when one of them failed.
    """
    composer = Composer(config_dir=config_dir)
    own = [o for o in overrides if override_key(o).partition(".")[0] == "probe"]
    common = [o for o in overrides if o not in own]
    settings: ProbeConfig = read_settings(composer, "probe", own)
    _check_common(common)
    words = composer.rewrite(common)
    typed = [*words, "policy=random"]  # composes with any environment
    config = read_presets(composer, composer.compose(typed), typed)
    budget = settings.budget or config.env.total_steps  # policy=random has no steps of its own
    agents = _agents(config, settings)
    run = [f"run.total_steps={budget}", f"run.eval_every={budget}", "run.stop_value=null",
           f"run.eval_episodes={settings.episodes}"]  # fmt: skip
    seeds = range(config.seed, config.seed + settings.seeds)
    jobs = [[*words, *run, *agent, f"seed={seed}"] for agent in agents.values() for seed in seeds]
    path = directory_of(settings.dir, "probe.dir")
    _check_task(path, jobs[0])
    kept = [o for o in own if override_key(o) != "probe.dir"]
    command = ["probe", *flags, *common, *kept, f"probe.dir={path}"]
    silent = ["logger.progress=off"] if quiet else []
    runs = run_jobs(composer, silent, jobs, path, command, quiet=quiet)
    scores = {
        name: _scores(runs[i * len(seeds) : (i + 1) * len(seeds)]) for i, name in enumerate(agents)
    }
    name = next((o.partition("=")[2] for o in common if override_key(o) == "env"), config.env.id)
    steps = max(int(run.evaluations.env_steps[-1]) for run in runs)  # whole collect calls
    bounds = return_bounds(runs)
    gap = MemoryGap(name if name != "gym" else config.env.id, steps, scores, bounds)
    _write(path, gap, quiet=quiet)
    return gap


def _agents(config: Config, settings: ProbeConfig) -> dict[str, list[str]]:
    """Name -> overrides of every agent that the environment allows."""
    from gymnasium import spaces

    from rlrun.env import known_spaces

    obs, action, _ = known_spaces(replace(config.env, frame_stack=1), config.agents)
    real = isinstance(action, spaces.Box)
    base = [*(settings.real if real else settings.discrete)]
    memory = [*(settings.real_memory if real else settings.discrete_memory)]
    changed = {override_key(word) for word in memory}
    rest = [word for word in base if override_key(word) not in changed]
    flat = []  # only boxes are stacked
    masked = isinstance(obs, spaces.Dict) and _MASK in obs.spaces
    if not isinstance(obs, spaces.Box) and not config.env.wrappers:
        flat = ["env.wrappers=[{name:flatten_obs}]"]
    agents = {
        MEMORYLESS: base,
        STACKED: [*base, *flat, f"env.frame_stack={settings.stack}"],
        RECURRENT: [*rest, *memory],
    }
    if masked:  # a flat observation hides which actions are allowed
        del agents[STACKED]
    if config.env.kwargs.get(_FULL_STATE) is False:
        agents[FULL] = [*base, f"env.kwargs.{_FULL_STATE}=true"]
    return agents


def _check_task(path: "Path", memoryless: Sequence[str]) -> None:
    """Raise ConfigError where probe.dir holds runs of another task."""
    if not is_sweep(path):
        return
    task = _env_words(memoryless)
    for job in SweepRecord.read(path).jobs[:1]:  # that of the memoryless agent
        before = _env_words(job.overrides)
        if before == task:
            continue
        raise ConfigError(
            f"probe.dir = {path}: holds a probe of {' '.join(sorted(before))}; a new directory, "
            "or one of the same task, is allowed; choose another",
            key="probe.dir",
        )


def _env_words(job: Sequence[str]) -> set[str]:
    return {o for o in job if override_key(o).partition(".")[0] == "env"}


def _scores(runs: "Sequence[RunData]") -> list[float]:
    """The final scores. Raises: RlrunError when a run has none."""
    found = [score(run, "final") for run in runs]
    scores = [value for value in found if value is not None]
    if len(scores) < len(runs):
        run = next(run for run, value in zip(runs, found, strict=True) if value is None)
        error = RlrunError(
            f"{run.path}: has no score ({run.failure or run.status}); all runs of a probe are "
            "needed, for the others alone would favour an agent that fails; the same command with "
            "probe.dir of this directory tries it again"
        )
        error.exit_code = 1  # as a sweep with a failed job
        raise error
    return scores


def _write(path: "Path", gap: MemoryGap, *, quiet: bool) -> None:
    table = gap_table(gap)
    text = gap.sentence if STACKED in gap.scores else f"{gap.sentence} {_UNSTACKED}"
    replace_file(path / PAGE, f"# {gap.environment}\n\n{markdown(table)}\n{text}\n".encode())
    lines = [] if quiet else [*terminal_lines(table), ""]
    print("\n".join([*lines, text]), flush=True)


def _check_common(common: Sequence[str]) -> None:
    """Raise ConfigError for keys that the probe itself sets."""
    for text in common:
        key = override_key(text)
        if key in _CHOSEN or key == "env.frame_stack":
            allowed = "probe.budget, probe.seeds, probe.stack and probe.dir are allowed"
            raise ConfigError(
                f"{key} = {text.partition('=')[2]}: the probe chooses it; {allowed}; use them",
                key=key,
            )
