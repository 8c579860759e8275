"""The tables of the READMEs that name what the code makes: metrics, files, wrappers, exit codes."""

import json
import re
import tomllib
from dataclasses import fields
from fnmatch import fnmatch
from pathlib import Path

from rlrun import errors
from rlrun.errors import RlrunError
from rlrun.rundir.record import RunRecord
from tests import installed
from tests.pages import ROOT, Driver, argv_of, commands, first_cells, section

GLOSSARY_RUNS = {
    "r2d2": "policy=r2d2 env=tmaze debug=smoke run.dir=glossary/r2d2 transport=coded "
    "checkpoint.history=2",
    "dqn": "policy=dqn env=bandit debug=smoke run.dir=glossary/dqn",
    "screen": "policy=dqn env=gym env.id=tests.env.screen:test/Screen-v0 env.backend=sync "
    "buffer.compress=true debug=smoke run.dir=glossary/screen",
    "sac": "policy=sac env=pendulum debug=smoke run.dir=glossary/sac eval.max_episode_steps=9",
    "td3": "policy=td3 env=pendulum debug=smoke run.dir=glossary/td3",
    "rnd": "policy=dqn env=cartpole bonus=rnd debug=smoke run.dir=glossary/rnd",
    "noisy": "policy=rainbow env=bandit debug=smoke explore=boltzmann run.dir=glossary/noisy",
    "ppo": "policy=ppo env=bandit debug=smoke run.dir=glossary/ppo",
    "impala": "policy=impala env=bandit debug=smoke run.dir=glossary/impala",
    "pqn": "policy=pqn env=bandit debug=smoke run.dir=glossary/pqn",
    "bc": "policy=bc env=cartpole buffer.load=data/first debug=smoke run.dir=glossary/bc",
    "cql": "policy=cql env=cartpole buffer.load=data/first debug=smoke run.dir=glossary/cql",
    "iql": "policy=iql env=cartpole buffer.load=data/first debug=smoke run.dir=glossary/iql",
    "cql_sac": "policy=cql_sac env=pendulum pipeline=serial learner=transitions debug=smoke "
    "run.dir=glossary/cql_sac",
    "ray": "policy=r2d2 env=bandit pipeline=ray pipeline.weights_every=40 debug=smoke "
    "run.dir=glossary/ray",
    "demos": "policy=r2d2 env=cartpole buffer.demos=data/first debug=smoke run.dir=glossary/demos",
}
DATA = (
    "policy=r2d2 env=cartpole debug=smoke run.dir=outputs/first",
    "export outputs/first data/first",
)


def emitted(path: Path) -> set[str]:
    lines = (path / name for name in ("metrics.jsonl", "timings.jsonl"))
    return {key for file in lines for li in file.read_text().splitlines() for key in json.loads(li)}


def runs(drive: Driver, lines: list[str], path: Path) -> None:
    """Runs command lines, each of which has to end well."""
    results = drive([("rlrun", line.split()) for line in lines], path)
    for line, (code, _, err) in zip(lines, results, strict=True):
        assert code == 0, f"{line}: {err}"


def test_metric_glossary(drive: Driver, tmp_path: Path) -> None:
    """Both directions: a run emits what the table lists, and nothing else."""
    runs(drive, [*DATA, *GLOSSARY_RUNS.values()], tmp_path)
    found = set().union(*(emitted(tmp_path / "glossary" / name) for name in GLOSSARY_RUNS))
    listed = first_cells(section("rlrun/log/README.md", "Metrics"))
    assert sorted(listed) == sorted(found - {"env_steps"})


SPECIAL = (
    "crash.txt",
    "metrics.csv",
    "wandb_id.txt",
    "mlflow_id.txt",
    "videos/",
)  # not of every run


def test_run_directory_tables(drive: Driver, tmp_path: Path) -> None:
    """The files of a run, and the fields of its run.json."""
    runs(drive, [GLOSSARY_RUNS["r2d2"]], tmp_path)
    top = tmp_path / "glossary/r2d2"
    listed = first_cells(section("rlrun/rundir/README.md", "Files"))
    found = [p.relative_to(top).as_posix() for p in top.rglob("*") if p.is_file()]
    for name in found:
        assert any(fnmatch(name, pattern) for pattern in listed), f"{name} is not in the README"
    for pattern in listed:
        made = any(fnmatch(name, pattern) for name in found)
        assert made or pattern in SPECIAL, f"no run makes {pattern}"
    record = json.loads((top / "run.json").read_text())
    nested = [f"eval.{key}" for key in record["eval"]]
    listed = first_cells(section("rlrun/rundir/README.md", "run.json"))
    assert sorted(listed) == sorted([*record, *nested])
    assert {f.name for f in fields(RunRecord)} == {*record} - {"sha256"}


def test_wrapper_table() -> None:
    """Names, arguments and words are those of the code."""
    from rlrun.env.wrappers import WRAPPERS
    from rlrun.schema import WRAPPER_CONFIGS

    listed = section("rlrun/env/README.md", "Wrappers")
    for name, (_, what) in WRAPPERS.items():
        arguments = ", ".join(f"`{f.name}`" for f in fields(WRAPPER_CONFIGS[name])[1:])
        assert f"| `{name}` | {arguments} | {what} |\n" in listed


def test_extras_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    listed = first_cells(section("rlrun/env/README.md", "Extras"))
    assert sorted([*listed, "all", "test"]) == sorted(extras)
    for module in set(installed.MODULES.values()):
        assert installed.extra_of(module).strip("`[]") in extras


def test_dependencies_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [re.match(r"[\w-]+", line)[0] for line in project["dependencies"]]
    listed = re.findall(r"^\| ([\w-]+) \| \w", section("rlrun/README.md", "Dependencies"), re.M)
    assert sorted(listed[1:]) == sorted(wanted)


def test_exit_codes() -> None:
    classes = [
        c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, RlrunError)
    ]
    listed = {int(code) for code in first_cells(section("rlrun/cli/README.md", "Exit codes"))}
    assert {c.exit_code for c in classes} <= listed
    assert listed == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 75, 130, 143}


def test_same_command_same_digest(drive: Driver, tmp_path: Path) -> None:
    """The section on determinism, checked with its two runs."""
    lines = [c for c in commands("rlrun/run/README.md") if "seed=7" in c]
    runs(drive, [" ".join(argv_of(line)) for line in lines], tmp_path)
    records = [tmp_path / name / "run.json" for name in ("outputs/once", "outputs/again")]
    digests = [json.loads(path.read_text())["digest"] for path in records]
    assert digests[0] == digests[1]
