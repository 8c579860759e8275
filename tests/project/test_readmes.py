"""The READMEs are true: their commands run and their links lead somewhere.

Every README has one test of its commands, which run in its order in a fresh directory.
"""

import math
import re
import shlex
import subprocess
from dataclasses import replace
from importlib import import_module

import pytest

from rlrun.cli.help import help_text
from rlrun.cli.key_table import Table
from rlrun.config import Composer, check, read_composed
from tests.key_reference import KEYS, table_text
from tests.pages import PAGES, ROOT, SHORTER, argv_of, blocks, commands

SETUP = (  # run in a fresh virtual environment by .ci/run, and too slow for here
    "pip install . && rlrun policy=r2d2 env=cartpole",
    "pip install '.[test]' && pytest",
)
NOT_RUN = {
    "rlrun play outputs/watched": "opens a window; tests/log opens one without a screen",
    "rlrun tensorboard outputs": "a server; tests/log/test_server.py starts it",
    'eval "$(rlrun -sc install=bash)"': "for an interactive shell; `rlrun -sc` itself is run",
    "rlrun export policy outputs/first --onnx first.onnx": "loads the exporter, which takes "
    "seconds; tests/policy/test_export.py has a process that did",
    "rlrun export card outputs/first cards/first": "the same; tests/run/test_card.py",
    "rlrun eval cards/first": "scores what the line above wrote",
    "rlrun policy=scripted policy.script=function policy.function=mypkg.acts:act env=cartpole "
    "--trust mypkg": "needs a package of the user's; tests/base/test_trust.py has one",
}
BENCHMARK = re.compile(
    r"(?:python -m (tests\.(?:benchmarks|policy\.export)[.\w]*)|pytest (\S+\.py))(?: |$)"
)
NEEDS_DATA = "import_minari("  # a block of Python that downloads
LONG = "trains for minutes with many seeds"
COMPOSED = {  # composed and checked instead, every job of a sweep
    "rlrun policy=r2d2 env=cartpole device=cuda": "needs a GPU",
    "rlrun experiment=r2d2_paper env=cartpole": "wants a big machine",
    "rlrun policy=r2d2 env=cartpole pipeline=ray pipeline.num_actors=2": "as README.md's, "
    "which is run",
    "rlrun -m policy=dqn env=bandit seed=0,1 hydra/launcher=ray": "starts a "
    "Ray; tests/sweeps/test_ray_pool.py runs a sweep on one",
    "rlrun -m experiment=r2d2_stored_state policy.state_init=stored,zero seed=0,1,2,3,4 "
    "run.stop_return=null": LONG,
}
EVERY = {page: commands(page) for page in PAGES if page != "tests/README.md"}


def is_run(command):
    listed = command in (*SETUP, *NOT_RUN, *COMPOSED)
    return not listed and not BENCHMARK.match(command)


def steps_of(page):
    """The command lines of a page that are run, then its blocks of Python."""
    lines = {c: argv_of(c) for c in EVERY.get(page, ()) if is_run(c)}
    if any("rlrun -sc install=bash" in c for c in EVERY.get(page, ())):
        lines["rlrun -sc install=bash"] = ["-sc", "install=bash"]
    return lines | {code: code for code in blocks(page, "python") if NEEDS_DATA not in code}


@pytest.mark.parametrize("page", [page for page in PAGES if steps_of(page)])
def test_commands(page, forks, tmp_path):
    for block in blocks(page, "yaml"):
        if name := re.search(r"^# (my/\S+\.yaml)\n", block, re.M):
            (tmp_path / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name[1]).write_text(block, "utf-8")
    bad = {}
    for shown, step in steps_of(page).items():
        code, out, err = forks.run(step, tmp_path)
        right = code == 0 and not re.search("Traceback|Warning", err)
        if not right or bool(out + err) == (" -q" in shown):
            bad[shown] = (code, out, err)
    assert not bad


def test_commands_are_valid_shell():
    """Every block, and every command in running text: `seed=range(5)` needs quotes."""
    texts = {page: (ROOT / page).read_text("utf-8") for page in PAGES}
    spoken = {p: re.findall(r"`(rlrun [^`]*)`", re.sub(r"```.*?```", "", t, flags=re.S))
              for p, t in texts.items()}  # fmt: skip
    scripts = {page: [*blocks(page, "sh"), *(c.replace("\\|", "") for c in spoken[page])]
               for page in PAGES}  # fmt: skip
    spoken_by_help = re.findall(r"^ +(rlrun .*?)(?:  |$)", help_text("0", Table()), re.M)
    scripts["--help"] = [re.sub(r"[][|]", "", line) for line in spoken_by_help]
    assert sum(map(len, scripts.values())) > 200
    for page, lines in scripts.items():
        done = subprocess.run(
            ["bash", "-n"], input="\n".join(lines), text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{page}: {done.stderr}"


def inline(page):
    """The runs named in running text; tables name some with placeholders."""
    text = re.sub(r"```.*?```|^\|.*?$", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
    found = re.findall(r"`(rlrun\s+(?:-m\s+)?(?:policy|experiment)=[^`]*)`", text)
    return [" ".join(line.split()) for line in found]


def configs(command):
    """The configs of all jobs but those that differ in the seed alone."""
    words = [w for w in shlex.split(command)[1:] if w != "-m"]
    composer = Composer()
    cfg = composer.compose(composer.rewrite(words), sweep=True)
    jobs = composer.jobs(cfg)
    assert len(jobs) == math.prod(1 + word.count(",") for word in words)
    distinct = {tuple(w for w in job if not w.startswith("seed=")): job for job in jobs}
    return [read_composed(composer.compose_job(cfg, job, 0)) for job in distinct.values()]


def test_commands_that_are_not_run_are_composed():
    """Every job of a long sweep; commands in running text, whose environments may be missing."""
    for command in COMPOSED:
        for config in configs(command):
            check(replace(config, device="cpu"))
    for command in sorted({c for page in PAGES for c in inline(page)}):
        assert configs(command)


def test_benchmark_commands_are_understood():
    """Private: a run takes minutes; ``python -m tests.benchmarks --quick`` runs short forms."""
    for command in {c for lines in EVERY.values() for c in lines if BENCHMARK.match(c)}:
        found = BENCHMARK.match(command)
        assert found
        if found[2]:
            assert (ROOT / found[2].partition("::")[0]).is_file(), command
            continue
        name = found[1] if found[1].count(".") > 1 else f"{found[1]}.__main__"
        module = import_module(name)
        if hasattr(module, "_parser"):
            module._parser().parse_args(shlex.split(command)[3:])


def test_set_up_commands_are_those_of_ci():
    (block,) = (b for b in blocks("README.md", "sh") if "pip install" in b)
    assert block.splitlines() == [*SETUP]
    ci = (ROOT / ".ci/run").read_text("utf-8")
    assert "pip install -q ." in ci
    assert "pip install -q '.[test]'" in ci


def test_excluded_commands_are_shown():
    stale = {*NOT_RUN, *COMPOSED, *SHORTER} - {c for lines in EVERY.values() for c in lines}
    assert not stale, "in no README any more"


def anchors(path):
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.M | re.S)
    titles = (title.lower() for title in re.findall(r"^#+ (.*)", text, re.M))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def test_links_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            file, _, anchor = link.partition("#")
            target = (ROOT / page).parent / file if file else ROOT / page
            assert "://" in link or target.exists(), f"{page}: {link}"
            assert "://" in link or not anchor or anchor in anchors(target), f"{page}: {link}"


def test_files_of_the_rooms_exist():
    lines = (ROOT / "rlrun/README.md").read_text().partition("## Adding things")[0].splitlines()
    rooms = [line.split("|")[1:] for line in lines if line.startswith("| ")][2:]
    for name, _, _, order, _ in rooms:
        room = re.sub(r"\(.*|[][ ]", "", name).replace("filesofrun", "run")
        for file in re.findall(r"`([\w/]+\.(?:py|txt|css))`", order):
            assert [*(ROOT / "rlrun" / room).rglob(file)], f"{room}: {file}"


def test_the_key_table_is_up_to_date():
    assert KEYS.read_text("utf-8") == table_text(), "run: python -m tests.key_reference"
