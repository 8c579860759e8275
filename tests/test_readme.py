"""The READMEs are true: their commands run, their links lead somewhere, their tables are complete.

Every README has one test of its commands, which run in its order in a fresh directory. The key
reference of conf/README.md has tests of its own (tests/test_config_reference.py).
"""

import json
import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
from dataclasses import fields, replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rlrun import errors
from rlrun.config import Composer, check, read_composed
from rlrun.errors import RlrunError
from rlrun.rundir import RunRecord
from rlrun.schema import Config
from tests import installed

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "conf/README.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "rlrun").rglob("*.md")),
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("*.md")),
]

# -- the commands ----------------------------------------------------------------------------------

SETUP = (  # run in a fresh virtual environment by .ci/run, and too slow for here
    "pip install . && rlrun policy=r2d2 env=cartpole",
    "pip install '.[test]' && pytest",
)
NOT_RUN = {
    "tensorboard --logdir outputs": "a server; tests/log read the event files back",
    'eval "$(rlrun -sc install=bash)"': "for an interactive shell; `rlrun -sc` itself is run",
    "rlrun policy=scripted policy.script=function policy.function=mypkg.acts:act env=cartpole "
    "--trust mypkg": "needs a package of the user's; tests/test_trust.py has one",
}
BENCHMARK = re.compile(r"(?:python -m (tests\.benchmarks[.\w]*)|pytest (\S+\.py))(?: |$)")
NEEDS_DATA = "import_minari("  # a block of Python that downloads
LONG = "trains for minutes with many seeds"
COMPOSED = {  # composed and checked instead, every job of a sweep
    "rlrun policy=r2d2 env=cartpole device=cuda": "needs a GPU",
    "rlrun experiment=r2d2_paper env=cartpole": "wants a big machine",
    "rlrun -m policy=r2d2 env=cartpole seed=0,1,2,3,4": LONG,
    "rlrun -m policy=r2d2 env=cartpole_novel seed=0,1,2,3,4": LONG,
    "rlrun -m policy=dqn policy.prev_inputs=true env=cartpole_novel seed=0,1,2,3,4": LONG,
    "rlrun -m experiment=r2d2_repeat_previous seed=0,1,2,3,4": LONG,
    "rlrun -m policy=r2d2,dqn env=tmaze env.length=10 seed=0,1,2,3,4": LONG,
    "rlrun -m experiment=r2d2_tmaze50 seed=0,1,2,3,4": LONG,
    "rlrun -m policy=qmix,vdn env=twostep seed=0,1,2,3,4": LONG,
    "rlrun -m policy=dqn explore=anneal agents=shared,separate env=twostep seed=0,1,2,3,4": LONG,
    "rlrun -m policy=r2d2 env=tmaze env.length=20 policy.learn_unroll_len=12 "
    "policy.state_init=stored,zero seed=0,1,2,3,4": LONG,
}
TINY = "debug=smoke"
SHORTER = {  # what is added to end soon where debug=smoke does not win or is not allowed
    "rlrun policy=dqn env=gym env.id=Acrobot-v1 run.total_steps=100000": "run.total_steps=400",
    "rlrun resume outputs/first run.total_steps=100000 run.stop_value=null": "run.total_steps=600",
    "rlrun doctor --calibrate policy=r2d2 env=cartpole memory.hidden=128": "--seconds 0.01",
    "rlrun doctor --calibrate policy=sac env=pendulum": "--seconds 0.01",
    **{
        f"rlrun policy={p} env=cartpole buffer.load=data/first run.total_steps=10000": (
            "run.total_steps=400"
        )
        for p in ("iql", "bc_recurrent")
    },
}
SUBCOMMANDS = ("eval", "resume", "export", "codec", "doctor", "list")
SHOWS = {"--help", "--version", "--cfg"}  # flags of lines that train nothing
DRIVER = """
import contextlib, io, json, sys
from rlrun.__main__ import main
results = []
for kind, what in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(what) if kind == "rlrun" else exec(what, {}) or 0
    results.append((code, out.getvalue(), err.getvalue()))
json.dump(results, sys.__stdout__)
"""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S)


def commands(page: str) -> list[str]:
    """Every command line shown, without its comment."""
    lines = (
        re.sub(r"\s+# .*", "", li).strip()
        for block in blocks(page, "sh")
        for li in block.split("\n")
    )
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


EVERY = {page: commands(page) for page in PAGES}


def is_run(command: str) -> bool:
    listed = command in (*SETUP, *NOT_RUN, *COMPOSED)
    return not listed and not BENCHMARK.match(command)


def argv_of(command: str) -> list[str]:
    """What is run for a command line of a README."""
    program, *words = shlex.split(command)
    assert program == "rlrun", f"{command}: neither run nor excluded with a reason"
    if SHOWS & {*words}:
        return words
    tiny = [] if words and words[0] in SUBCOMMANDS else [TINY]
    return [*words, *tiny, *shlex.split(SHORTER.get(command, ""))]


def drive(steps: list[tuple[str, Any]], path: Path) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of each step; one process for all, torch is imported once."""
    pythonpath = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(steps),
        cwd=path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(pythonpath)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(result) for result in json.loads(done.stdout)]


def steps_of(page: str) -> dict[str, tuple[str, Any]]:
    """What is run for a page, by what it shows: command lines, then blocks of Python."""
    lines = {c: ("rlrun", argv_of(c)) for c in EVERY[page] if is_run(c)}
    if any("rlrun -sc install=bash" in c for c in EVERY[page]):
        lines["rlrun -sc install=bash"] = ("rlrun", ["-sc", "install=bash"])
    codes = [code for code in blocks(page, "python") if NEEDS_DATA not in code]
    return lines | {code: ("python", code) for code in codes}


@pytest.mark.parametrize("page", [page for page in PAGES if steps_of(page)])
def test_commands(page: str, tmp_path: Path) -> None:
    for block in blocks(page, "yaml"):
        if name := re.search(r"^# (my/\S+\.yaml)\n", block, re.M):
            (tmp_path / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name[1]).write_text(block, "utf-8")
    steps = steps_of(page)
    results = drive(list(steps.values()), tmp_path)
    bad = {}
    for shown, (code, out, err) in zip(steps, results, strict=True):
        right = code == 0 and not re.search("Traceback|Warning", err)
        if not right or bool(out + err) == (" -q" in shown):
            bad[shown] = (code, out, err)
    assert not bad


def inline(page: str) -> list[str]:
    """The runs named in running text; tables name some with placeholders."""
    text = re.sub(r"```.*?```|^\|.*?$", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
    found = re.findall(r"`(rlrun\s+(?:-m\s+)?(?:policy|experiment)=[^`]*)`", text)
    return [" ".join(line.split()) for line in found]


def configs(command: str) -> list[Config]:
    """The config of every job."""
    words = [w for w in shlex.split(command)[1:] if w != "-m"]
    composer = Composer()
    cfg = composer.compose(composer.rewrite(words), sweep=True)
    jobs = composer.jobs(cfg)
    assert len(jobs) == math.prod(1 + word.count(",") for word in words)
    return [read_composed(composer.compose_job(cfg, job, num)) for num, job in enumerate(jobs)]


@pytest.mark.parametrize("command", COMPOSED)
def test_long_command_is_valid(command: str) -> None:
    for config in configs(command):
        check(replace(config, device="cpu"))


@pytest.mark.parametrize("command", sorted({c for page in PAGES for c in inline(page)}))
def test_command_in_running_text_is_composed(command: str) -> None:
    """Their environments may need a package that is not installed."""
    assert configs(command)


BENCHMARKS = {c for lines in EVERY.values() for c in lines if BENCHMARK.match(c)}


@pytest.mark.parametrize("command", sorted(BENCHMARKS))
def test_benchmark_command_is_understood(command: str) -> None:
    """They take minutes to hours; tests/benchmarks runs their quick forms."""
    found = BENCHMARK.match(command)
    assert found
    if found[2]:
        assert (ROOT / found[2]).is_file()
        return
    name = found[1] if found[1].count(".") > 1 else f"{found[1]}.__main__"
    words = shlex.split(command)[3:]
    module = import_module(name)
    if hasattr(module, "_parser"):
        module._parser().parse_args(words)
    else:
        assert not words


def test_set_up_commands_are_there_verbatim() -> None:
    (block,) = (b for b in blocks("README.md", "sh") if "pip install" in b)
    assert block.splitlines() == [*SETUP]
    ci = (ROOT / ".ci/run").read_text("utf-8")
    assert "pip install -q ." in ci
    assert "pip install -q '.[test]'" in ci


def test_excluded_commands_are_shown() -> None:
    stale = {*NOT_RUN, *COMPOSED, *SHORTER} - {c for lines in EVERY.values() for c in lines}
    assert not stale, "in no README any more"


# -- links and lengths -----------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S)
    titles = (title.lower() for title in re.findall(r"^#+ (.*)", text, re.M))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"


def test_front_page_is_short() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 350
    assert len(re.findall(r"\| \[.*TABLES\.md#", text)) == 20, "ten results, ten speeds"


def test_every_room_has_a_readme() -> None:
    """It says what the room is, in which order to read it, and what it may import."""
    rooms = {p.parent for p in (ROOT / "rlrun").glob("*/__init__.py")} - {ROOT / "rlrun/_plugins"}
    front = (ROOT / "rlrun/README.md").read_text("utf-8")
    for room in sorted(rooms | {p.parent for p in (ROOT / "rlrun").glob("*/README.md")}):
        text = (room / "README.md").read_text("utf-8")
        assert text.startswith(f"# {room.name}: ")
        assert "\n## Reading order\n" in text
        assert "\nMay import: " in text
        assert f"({room.name}/README.md)" in front


# -- tables that name what the code makes ----------------------------------------------------------

GLOSSARY_RUNS = {
    "r2d2": "policy=r2d2 env=tmaze debug=smoke run.dir=glossary/r2d2 transport=coded "
    "checkpoint.history=2",
    "dqn": "policy=dqn env=bandit debug=smoke run.dir=glossary/dqn",
    "screen": "policy=dqn env=gym env.id=tests.env.screen:test/Screen-v0 env.backend=sync "
    "buffer.compress=true debug=smoke run.dir=glossary/screen",
    "sac": "policy=sac env=pendulum debug=smoke run.dir=glossary/sac",
    "td3": "policy=td3 env=pendulum debug=smoke run.dir=glossary/td3",
    "rnd": "policy=dqn env=cartpole bonus=rnd debug=smoke run.dir=glossary/rnd",
    "noisy": "policy=rainbow env=bandit debug=smoke explore=boltzmann run.dir=glossary/noisy",
    "ppo": "policy=ppo env=bandit debug=smoke run.dir=glossary/ppo",
    "impala": "policy=impala env=bandit debug=smoke run.dir=glossary/impala",
    "bc": "policy=bc env=cartpole buffer.load=data/first debug=smoke run.dir=glossary/bc",
    "cql": "policy=cql env=cartpole buffer.load=data/first debug=smoke run.dir=glossary/cql",
    "iql": "policy=iql env=cartpole buffer.load=data/first debug=smoke run.dir=glossary/iql",
    "cql_sac": "policy=cql_sac env=pendulum pipeline=serial learner=transitions debug=smoke "
    "run.dir=glossary/cql_sac",
    "demos": "policy=r2d2 env=cartpole buffer.demos=data/first debug=smoke run.dir=glossary/demos",
}
DATA = (
    "policy=r2d2 env=cartpole debug=smoke run.dir=outputs/first",
    "export outputs/first data/first",
)


def section(page: str, title: str) -> str:
    """The text below ``## title``."""
    text = (ROOT / page).read_text("utf-8")
    match = re.search(rf"^(##+) {re.escape(title)}\n(.*?)(?=^##|\Z)", text, re.M | re.S)
    assert match, title
    return match[2]


def first_cells(text: str) -> list[str]:
    """What stands in backticks at the start of every table row."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.M)


def emitted(path: Path) -> set[str]:
    lines = (path / name for name in ("metrics.jsonl", "timings.jsonl"))
    return {key for file in lines for li in file.read_text().splitlines() for key in json.loads(li)}


def runs(lines: list[str], path: Path) -> None:
    """Runs command lines, each of which has to end well."""
    results = drive([("rlrun", line.split()) for line in lines], path)
    for line, (code, _, err) in zip(lines, results, strict=True):
        assert code == 0, f"{line}: {err}"


def test_metric_glossary(tmp_path: Path) -> None:
    """Both directions: a run emits what the table lists, and nothing else."""
    runs([*DATA, *GLOSSARY_RUNS.values()], tmp_path)
    found = set().union(*(emitted(tmp_path / "glossary" / name) for name in GLOSSARY_RUNS))
    listed = first_cells(section("rlrun/log/README.md", "Metrics"))
    assert sorted(listed) == sorted(found - {"env_steps"})


def test_run_directory_tables(tmp_path: Path) -> None:
    """The files of a run, and the fields of its run.json."""
    runs([GLOSSARY_RUNS["r2d2"]], tmp_path)
    top = tmp_path / "glossary/r2d2"
    listed = first_cells(section("rlrun/rundir/README.md", "Files"))
    found = [p.relative_to(top).as_posix() for p in top.rglob("*") if p.is_file()]
    for name in found:
        assert any(fnmatch(name, pattern) for pattern in listed), f"{name} is not in the README"
    for pattern in listed:
        made = any(fnmatch(name, pattern) for name in found)
        assert made or pattern == "crash.txt", f"no run makes {pattern}"
    record = json.loads((top / "run.json").read_text())
    nested = [f"eval.{key}" for key in record["eval"]]
    listed = first_cells(section("rlrun/rundir/README.md", "run.json"))
    assert sorted(listed) == sorted([*record, *nested])
    assert {f.name for f in fields(RunRecord)} == {*record}


def test_wrapper_table() -> None:
    """Names, arguments and words are those of the code."""
    from rlrun.env.wrappers import TABLE
    from rlrun.schema import WRAPPER_CONFIGS

    listed = section("rlrun/env/README.md", "Wrappers")
    for name, (_, what) in TABLE.items():
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


def test_same_command_same_digest(tmp_path: Path) -> None:
    """What the section on determinism says, with the two runs it shows."""
    lines = [c for c in EVERY["rlrun/run/README.md"] if "seed=7" in c]
    runs([" ".join(argv_of(line)) for line in lines], tmp_path)
    records = [tmp_path / name / "run.json" for name in ("outputs/once", "outputs/again")]
    digests = [json.loads(path.read_text())["digest"] for path in records]
    assert digests[0] == digests[1]
