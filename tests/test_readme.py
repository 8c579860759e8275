"""README.md says what is so: its commands run, its tables are those of conf/ and of the code.

``python -m tests.test_readme`` rewrites the section that is generated from conf/.
"""

import json
import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlrun import errors
from rlrun.config import Composer, check, read_composed
from rlrun.errors import RlrunError
from rlrun.rundir.record import RunRecord
from tests import installed

ROOT = Path(__file__).parents[1]
CONF, README = ROOT / "conf", ROOT / "README.md"
BEGIN, END = "<!-- config:begin -->\n", "<!-- config:end -->\n"

# -- the config reference --------------------------------------------------------------------------

GROUPS = (  # as a reader wants them
    *("policy", "torso", "memory", "buffer", "explore", "bonus"),
    *("collector", "learner", "env", "agents", "logger", "pipeline", "transport"),
)
PRESETS = ("experiment", "debug")


@dataclass(frozen=True)
class Key:
    """One line of a yaml."""

    name: str  # full, e.g. policy.lr.start
    default: str  # as written; empty: a mapping, its keys follow
    comment: str


def option_keys(path: Path, prefix: str) -> list[Key]:
    """The keys of a yaml in its order, without its defaults list and the hydra node."""
    keys: list[Key] = []
    parents: list[tuple[int, str]] = []  # (indentation, name)
    for line in path.read_text("utf-8").split("\nhydra:")[0].splitlines():
        code, _, comment = line.partition("  # ")
        found = re.fullmatch(r"( *)(\w+):(?: +(.*\S))? *", code)
        if not found or line.startswith("#") or found[2] == "defaults":
            continue
        indent, name, value = len(found[1]), found[2], found[3] or ""
        parents = [p for p in parents if p[0] < indent]
        full = ".".join([*([prefix] if prefix else []), *(p[1] for p in parents), name])
        parents.append((indent, name))
        keys.append(Key(full, value, comment.strip()))
    return keys


def companions(path: Path) -> dict[str, str]:
    """{group: option} that a yaml chooses besides itself."""
    found = re.findall(r"- override /(\w+)(?:@\S+)?: (\w+)", path.read_text("utf-8"))
    return dict(found)


def with_bases(path: Path, prefix: str) -> list[Key]:
    """The keys of a yaml and those of the base yamls that it starts from."""
    bases = re.findall(r"- (base/\w+)@_here_\n", path.read_text("utf-8"))
    paths = [path, *(path.parent / f"{base}.yaml" for base in bases)]
    return [key for p in paths for key in option_keys(p, prefix)]


def options(group: str) -> dict[str, list[Key]]:
    """option -> keys, the one with the most keys first."""
    paths = sorted((CONF / group).glob("*.yaml"))
    prefix = "" if group in PRESETS else group
    found = {p.stem: with_bases(p, prefix) for p in paths}
    usual = re.findall(r"- (\w+): (\w+)\n", (CONF / "config.yaml").read_text("utf-8"))
    first = [o for g, o in usual if g == group == "policy"]  # others' keys are told apart from its
    order = {o: (o not in first, -len(keys), (group, o) not in usual) for o, keys in found.items()}
    return dict(sorted(found.items(), key=lambda i: order[i[0]]))


def _row(*cells: str) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |\n"


def _table(*head: str) -> str:
    return _row(*head) + _row(*("---" for _ in head))


def _default(values: dict[str, str], among: int) -> str:
    """``1`` where all options agree, else ``1`` (a, b), ``2`` (c)."""
    by_value: dict[str, list[str]] = {}
    for option, value in values.items():
        by_value.setdefault(value, []).append(option)
    if len(by_value) == 1 and len(values) == among:
        (value,) = by_value
        return f"`{value}`" if value else "(the keys below)"
    shown = ((f"`{v}`" if v else "(the keys below)", names) for v, names in by_value.items())
    return ", ".join(f"{value} ({', '.join(names)})" for value, names in shown)


def _group(group: str) -> str:
    found = options(group)
    heirs = {n: o for n in found for o in found if f"\n  - {o}\n" in _text(group, n)}
    keys: dict[str, Key] = {}
    for key in (k for option in found.values() for k in option):
        keys.setdefault(key.name, key)
    out = _table("key", "default", "unit, meaning; source")
    for name, key in keys.items():
        values = {o: k.default for o, ks in found.items() for k in ks if k.name == name}
        among = len(found) - len({*heirs} - {*values})
        out += _row(f"`{name}`", _default(values, among), key.comment)
    for option in found:
        brings = companions(CONF / group / f"{option}.yaml")
        if brings:
            chosen = ", ".join(f"`{g}={o}`" for g, o in brings.items())
            rest = f" and the rest from {heirs[option]}" if option in heirs else ""
            out += f"\n`{group}={option}` brings {chosen}{rest}.\n"
    return out


def _text(group: str, option: str) -> str:
    return (CONF / group / f"{option}.yaml").read_text("utf-8")


def _env() -> str:
    """What the keys of an environment mean, then the values of each."""
    found = dict(sorted(options("env").items()))
    columns = [
        "id",
        "wrappers",
        "frame_stack",
        "reward_scale",
        "stop_value",
        "total_steps",
        "eval_every",
        "warmup_steps",
        "success",
    ]
    out = _table("key", "default", "unit, meaning; source")
    for key in found["cartpole"]:
        name = key.name.removeprefix("env.")
        per_env = name in (*columns, "note", "kwargs", "eval_kwargs")
        # The part behind the last semicolon of these comments is about cartpole alone.
        text = key.comment.rpartition("; ")[0] or key.comment if per_env else key.comment
        out += _row(f"`{key.name}`", "see below" if per_env else f"`{key.default}`", text)
    out += "\n" + _table("env", *columns, "needs")
    for option, keys in found.items():
        values = {k.name.removeprefix("env."): k.default for k in keys}
        module = option in installed.PRESETS and installed.module_of(option)
        out += _row(f"`{option}`", *(f"`{values[c]}`" for c in columns), _extra(module))
    out += "\n" + _table("argument", "env", "default", "unit, meaning; source")
    for option, keys in found.items():
        for key in keys:
            if re.match(r"env\.(eval_)?kwargs\.", key.name):
                out += _row(f"`{key.name}`", f"`{option}`", f"`{key.default}`", key.comment)
    return out


def _extra(module: Any) -> str:
    """The extra that brings a module an environment needs."""
    return f"`[{ {'ale_py': 'atari'}.get(module, module.lower()) }]`" if module else ""


def _presets() -> str:
    found = {f"{g}={o}": keys for g in PRESETS for o, keys in options(g).items()}
    chosen = {c: companions(CONF / "{}/{}.yaml".format(*c.split("="))) for c in found}
    out = _table("key", *(f"`{c}`" for c in found))
    for group in dict.fromkeys(g for brings in chosen.values() for g in brings):
        out += _row(f"`{group}=`", *(_cell(chosen[c].get(group)) for c in found))
    order = dict.fromkeys(k.name for keys in found.values() for k in keys if k.default)
    for name in sorted(order, key=lambda n: n.split(".")[0]):
        values = ({k.name: k.default for k in keys}.get(name) for keys in found.values())
        out += _row(f"`{name}`", *map(_cell, values))
    return out


def _cell(value: str | None) -> str:
    return "" if value is None else f"`{value}`"


def reference() -> str:
    """The generated section of the README."""
    out = "### Root and `run`\n\n" + _table("key", "default", "unit, meaning; source")
    for key in option_keys(CONF / "config.yaml", ""):
        if key.default:
            out += _row(f"`{key.name}`", f"`{key.default}`", key.comment)
    for group in GROUPS:
        out += f"\n### `{group}`\n\n{_env() if group == 'env' else _group(group)}"
    return f"{out}\n### Presets: `experiment` and `debug`\n\n{_presets()}"


def _split() -> tuple[str, str, str]:
    before, _, rest = README.read_text("utf-8").partition(BEGIN)
    inside, _, after = rest.partition(END)
    return before, inside, after


def rewrite() -> None:
    """Writes the generated section anew."""
    before, _, after = _split()
    README.write_text(f"{before}{BEGIN}{reference()}{END}{after}", "utf-8")


def test_config_reference_is_the_one_of_conf() -> None:
    assert _split()[1] == reference(), "run: python -m tests.test_readme"


def test_config_reference_has_every_key_of_every_yaml() -> None:
    """Counted by OmegaConf, not by the parser above."""
    text = _split()[1]
    for path in sorted(CONF.rglob("*.yaml")):
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        assert isinstance(values, dict)
        group = path.relative_to(CONF).parts[0]
        prefix = "" if group in (*PRESETS, path.name) else f"{group}."
        values = {k: v for k, v in values.items() if k not in ("defaults", "hydra")}
        for key in _leaves(values, prefix):
            assert f"| `{key}` |" in text, f"{path}: {key}"


def _leaves(values: dict[Any, Any], prefix: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


# -- the commands ----------------------------------------------------------------------------------

SETUP = (  # run in a fresh virtual environment by .ci/run, and too slow for here
    "pip install . && rlrun policy=r2d2 env=cartpole",
    "pip install '.[test]' && pytest",
)
NOT_RUN = {
    "tensorboard --logdir outputs": "a server; tests/log read the event files back",
    'eval "$(rlrun -sc install=bash)"': "for an interactive shell; `rlrun -sc` itself is run",
    "python -m tests.benchmarks --peers DIR --out speed.jsonl": "needs the peers, takes an hour",
    "python -m tests.benchmarks --table speed.jsonl": "needs the rows of the line above",
    "python -m tests.benchmarks.replay --peers DIR --out replay.jsonl": "needs the peers",
    "python -m tests.benchmarks.replay --table replay.jsonl": "needs the rows of the line above",
    "python -m tests.benchmarks.scores --jobs 2 --peers DIR --out "
    "tests/benchmarks/results/scores.jsonl": "takes hours",
    "python -m tests.benchmarks.scores --table tests/benchmarks/results/scores.jsonl": (
        "writes the file under test"
    ),
    "rlrun policy=scripted policy.script=function policy.function=mypkg.acts:act env=cartpole "
    "--trust mypkg": "needs a package of the user's; tests/test_trust.py has one",
    "python -m tests.test_readme": "would rewrite the file under test",
}
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
    **{
        f"rlrun policy={p} env=cartpole buffer.load=data/first run.total_steps=10000": (
            "run.total_steps=400"
        )
        for p in ("iql", "bc_recurrent")
    },
}
SUBCOMMANDS = ("eval", "resume", "export", "codec", "doctor", "list")
SHOWS = {"--help", "--version", "--cfg"}  # flags of lines that train nothing


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text("utf-8"), re.M | re.S)


def commands() -> list[str]:
    """Every command line shown, without its comment."""
    lines = (
        re.sub(r"\s+# .*", "", li).strip() for block in blocks("sh") for li in block.split("\n")
    )
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def argv_of(command: str) -> list[str]:
    """What is run for a command line of the README."""
    program, *words = shlex.split(command)
    assert program == "rlrun", f"{command}: neither run nor excluded with a reason"
    if SHOWS & {*words}:
        return words
    tiny = [] if words and words[0] in SUBCOMMANDS else [TINY]
    return [*words, *tiny, *shlex.split(SHORTER.get(command, ""))]


RUN = [c for c in commands() if c not in (*SETUP, *NOT_RUN, *COMPOSED)]
COMPLETION = "rlrun -sc install=bash"
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
DRIVER = """
import contextlib, io, json, sys
from rlrun.cli import main
results = []
for argv in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    results.append((code, out.getvalue(), err.getvalue()))
json.dump(results, sys.__stdout__)
"""


@dataclass(frozen=True)
class Session:
    """A newcomer's directory after every command of the README, in its order."""

    path: Path
    results: dict[str, tuple[int, str, str]]  # command -> exit code, stdout, stderr


def _path() -> list[str]:
    """What PYTHONPATH names already."""
    return list(filter(None, [os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """One process for all of them: torch is imported once."""
    path = tmp_path_factory.mktemp("newcomer")
    for block in blocks("yaml"):
        name = re.search(r"^# (my/\S+\.yaml)\n", block, re.M)
        if name:
            (path / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (path / name[1]).write_text(block, "utf-8")
    lines = {c: argv_of(c) for c in RUN}
    lines |= {name: line.split() for name, line in GLOSSARY_RUNS.items()}
    lines[COMPLETION] = ["-sc", "install=bash"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(list(lines.values())),
        cwd=path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *_path()])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = (tuple(r) for r in json.loads(done.stdout))
    return Session(path, dict(zip(lines, results, strict=True)))


@pytest.mark.parametrize("command", [*RUN, COMPLETION])
def test_command(session: Session, command: str) -> None:
    code, out, err = session.results[command]
    assert code == 0, err
    assert "Traceback" not in err
    assert "Warning" not in err
    assert bool(out + err) != (" -q" in command)


@pytest.mark.parametrize("command", COMPOSED)
def test_long_command_is_valid(command: str) -> None:
    words = [w for w in shlex.split(command)[1:] if w != "-m"]
    composer = Composer()
    cfg = composer.compose(composer.rewrite(words), sweep=True)
    jobs = composer.jobs(cfg)
    assert len(jobs) == math.prod(1 + word.count(",") for word in words)
    for num, job in enumerate(jobs):
        config = read_composed(composer.compose_job(cfg, job, num))
        check(replace(config, device="cpu"))


def test_set_up_commands_are_there_verbatim() -> None:
    (block,) = (b for b in blocks("sh") if "pip install" in b)
    assert [line for line in block.splitlines() if not line.startswith("#") and line] == [*SETUP]
    ci = (ROOT / ".ci/run").read_text("utf-8")
    assert "pip install -q ." in ci
    assert "pip install -q '.[test]'" in ci


def test_excluded_commands_are_shown() -> None:
    stale = {*NOT_RUN, *COMPOSED, *SHORTER} - {*commands()}
    assert not stale, "no longer in the README"


# -- tables that name what the code makes ----------------------------------------------------------


def section(title: str) -> str:
    """The text below ``## title`` or ``### title``."""
    match = re.search(
        rf"^(##+) {re.escape(title)}\n(.*?)(?=^##|\Z)", README.read_text(), re.M | re.S
    )
    assert match, title
    return match[2]


def first_cells(text: str) -> list[str]:
    """What stands in backticks at the start of every table row."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.M)


def emitted(path: Path) -> set[str]:
    lines = (path / name for name in ("metrics.jsonl", "timings.jsonl"))
    return {key for file in lines for li in file.read_text().splitlines() for key in json.loads(li)}


def test_metric_glossary(session: Session) -> None:
    """Both directions: a run emits what the README lists, and nothing else."""
    listed = first_cells(section("Metrics"))
    found = set().union(*(emitted(session.path / "glossary" / name) for name in GLOSSARY_RUNS))
    assert sorted(listed) == sorted(found - {"env_steps"})


def test_run_directory_table(session: Session) -> None:
    listed = first_cells(section("Files"))
    top = session.path / "glossary/r2d2"
    found = [p.relative_to(top).as_posix() for p in top.rglob("*") if p.is_file()]
    for name in found:
        assert any(fnmatch(name, pattern) for pattern in listed), f"{name} is not in the README"
    for pattern in listed:
        made = any(fnmatch(name, pattern) for name in found)
        assert made or pattern == "crash.txt", f"no run makes {pattern}"


def test_run_json_table(session: Session) -> None:
    record = json.loads((session.path / "glossary/r2d2/run.json").read_text())
    nested = [f"eval.{key}" for key in record["eval"]]
    assert sorted(first_cells(section("run.json"))) == sorted([*record, *nested])
    assert {f.name for f in fields(RunRecord)} == {*record}


def test_wrapper_table() -> None:
    """Names, arguments and words are those of the code."""
    from rlrun.env.wrappers import WRAPPERS
    from rlrun.schema import WRAPPER_CONFIGS

    for name, (_, what) in WRAPPERS.items():
        arguments = ", ".join(f"`{f.name}`" for f in fields(WRAPPER_CONFIGS[name])[1:])
        assert f"| `{name}` | {arguments} | {what} |\n" in section("Adding things")


def test_extras_table() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    listed = first_cells(section("Adding things").partition("**Wrappers**")[0])
    assert sorted([*listed, "all", "test"]) == sorted(extras)
    for module in set(installed.MODULES.values()):
        assert _extra(module).strip("`[]") in extras


def test_exit_codes() -> None:
    classes = [
        c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, RlrunError)
    ]
    listed = {int(code) for code in first_cells(section("Exit codes"))}
    assert {c.exit_code for c in classes} <= listed
    assert listed == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 75, 130, 143}


def test_same_command_same_digest(session: Session) -> None:
    """What the section on determinism says, with the two runs it shows."""
    paths = [session.path / name / "run.json" for name in ("outputs/once", "outputs/again")]
    digests = [json.loads(path.read_text())["digest"] for path in paths]
    assert digests[0] == digests[1]


if __name__ == "__main__":
    rewrite()
