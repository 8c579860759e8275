"""Tab completion: what bash is given, through its own machinery, and how fast."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.cli.completion import candidates, paths, relative, shell_script, split
from rlrun.cli.main import _COMMANDS
from tests.in_process import Done

SECONDS = 0.9  # of CPU for one answer; measured: 0.1
BASH = """
eval "$(rlrun -sc install=bash)"
complete -p rlrun
while IFS= read -r line; do
    COMP_LINE=$line COMP_POINT=${#line}
    IFS=' ' read -r -a COMP_WORDS <<< "$line"
    case $line in
        *=) COMP_WORDS=("${COMP_WORDS[@]}" "=");;
        *=*) COMP_WORDS=("${COMP_WORDS[@]}" "${line##*=}");;
        *' ') COMP_WORDS=("${COMP_WORDS[@]}" "");;
    esac
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    COMPREPLY=()
    _rlrun_complete
    printf '%s|' "${COMPREPLY[@]}"
    echo
done
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run, an empty directory and a file."""
    for name in ("outputs/a run", "outputs/other", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outputs/a run/config.yaml").touch()
    (tmp_path / "outputs/notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


LINES = {
    "rlrun pl": ["play "],
    "rlrun policy=r2": ["r2d2 ", "r2d2_c51 ", "r2d2_qr "],
    "rlrun bonus=": ["none ", "rnd "],
    "rlrun policy=dqn policy.ns": ["policy.nstep="],
    "rlrun run.stop_after=": ["2 "],
    "rlrun play outputs/": ["outputs/a\\ run ", "outputs/other/"],
    "rlrun resume outputs/other run.max": ["run.max_time="],
    "rlrun play x --v": ["--video "],
    "rlrun eval x --weights b": ["best "],
}


def test_bash_completes(here: Path) -> None:
    """By the installed function, with words split at = as bash does."""
    if shutil.which("bash") is None or shutil.which("rlrun") is None:
        pytest.skip("no bash, or rlrun is not installed")
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH], input="\n".join(LINES) + "\n", capture_output=True,
        text=True, cwd=here, check=True,
    )  # fmt: skip
    installed, *answers = done.stdout.splitlines()
    assert installed == "complete -o nospace -F _rlrun_complete rlrun"
    found = {line: text.split("|")[:-1] for line, text in zip(LINES, answers, strict=True)}
    assert found == LINES
    assert done.stderr == ""


@pytest.mark.parametrize("line", ["rlrun pl", "rlrun policy.n", "rlrun play outputs/"])
def test_an_answer_is_quick(here: Path, line: str) -> None:
    """CPU time of the process, which another's load does not change much."""
    code = "import sys; from rlrun.cli.main import main; sys.exit(main(sys.argv[1:]))"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code, "-sc", "query=bash"], check=True, capture_output=True,
        env={**os.environ, "COMP_LINE": line, "COMP_POINT": str(len(line))},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS


def test_nothing_slow_is_imported() -> None:
    code = (
        "import os, sys; from rlrun.cli.main import main; main(['-sc', 'query=bash']); "
        "print({'hydra', 'omegaconf', 'yaml', 'numpy', 'gymnasium', 'torch', 'rlrun.schema'} "
        "& {*sys.modules})"
    )
    line = {"COMP_LINE": "rlrun policy=dqn policy.", "COMP_POINT": "24"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **line}, capture_output=True, check=True,
        text=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "set()"
    assert "policy.lr." in done.stdout


def test_every_subcommand_and_its_options_are_offered() -> None:
    assert [*_COMMANDS] == [x.strip() for x in candidates("rlrun ", _COMMANDS)][: len(_COMMANDS)]
    for name in _COMMANDS:
        flags = candidates(f"rlrun {name} -", _COMMANDS)
        assert flags[-1] == "--help "
    assert {"--video ", "--traces ", "--seed "} <= {*candidates("rlrun play -", _COMMANDS)}


def test_keys_are_those_of_the_options_on_the_line() -> None:
    assert "policy.eta=" in candidates("rlrun policy.", _COMMANDS)  # of r2d2
    assert "policy.eta=" not in candidates("rlrun policy=ppo policy.", _COMMANDS)
    assert "policy.clip." in candidates("rlrun policy=ppo policy.c", _COMMANDS)
    assert candidates("rlrun -m policy=dqn,pp", _COMMANDS)[-1].startswith("policy=dqn,")
    assert "buffer.alpha=" in candidates("rlrun buffer.", _COMMANDS)  # r2d2 brings it along
    assert candidates("rlrun nothing", _COMMANDS) == []


def test_own_yaml_files_are_options(here: Path) -> None:
    (here / "yaml/policy").mkdir(parents=True)
    (here / "yaml/policy/mine.yaml").write_text("defaults: [r2d2, _self_]\nlr: 1e-5\n")
    assert "policy=mine " in candidates("rlrun --config-dir yaml policy=m", _COMMANDS)


def test_paths(here: Path) -> None:
    assert [*paths("")] == ["outputs/"]
    assert [*paths(".h")] == [".hidden/"]
    assert [*paths("outputs/a\\ r")] == ["outputs/a\\ run "]
    assert [*paths(f"{here}/outputs/o")] == [f"{here}/outputs/other/"]
    assert [*paths("outputs/n", files=True)] == ["outputs/notes.txt "]
    assert [*paths("nowhere/")] == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlrun", ([], "rlrun")),
        ("rlrun ", (["rlrun"], "")),
        ("rlrun eval a\\ b", (["rlrun", "eval"], "a\\ b")),
        ("rlrun 'x y' z", (["rlrun", "'x y'"], "z")),
        ("rlrun 'x y", (["rlrun"], "'x y")),
        ("", ([], "")),
    ],
)
def test_words_of_a_line(line: str, expected: tuple[list[str], str]) -> None:
    assert split(line) == expected


def test_a_shell_that_splits_words_gets_the_rest() -> None:
    assert relative(["policy=dqn "], "rlrun policy=d", "d") == ["dqn "]
    assert relative(["policy=dqn "], "rlrun policy=", "=") == ["dqn "]
    assert relative(["policy=dqn "], "rlrun policy=d", "policy=d") == ["policy=dqn "]
    assert relative(["policy=dqn "], "rlrun policy=d", None) == ["policy=dqn "]


def test_shells(rlrun: Callable[..., Done]) -> None:
    for shell in ("bash", "zsh"):
        assert rlrun("-sc", f"install={shell}") == (0, shell_script(shell), "")
        assert "complete -r rlrun" in rlrun("-sc", f"uninstall={shell}").out
    assert "hydra_fish_completion" in rlrun("-sc", "install=fish").out


def test_fish_is_given_whole_words(
    rlrun: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_LINE", "rlrun bonus=")
    assert rlrun("-sc", "query=fish").out == "bonus=none\nbonus=rnd\n"
