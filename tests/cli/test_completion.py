"""Tab completion: what a shell is given for a line so far."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rlrun.cli.key_table import Table
from tests.in_process import assert_one_error

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
def complete(rlrun, tmp_path, monkeypatch):
    """The candidates of a line, in a directory with a run, an empty directory and a file."""
    for name in ("outputs/a run", "outputs/other", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outputs/a run/config.yaml").touch()
    (tmp_path / "outputs/notes.txt").touch()

    def ask(line, shell="bash"):
        monkeypatch.setenv("COMP_LINE", line)
        monkeypatch.setenv("COMP_POINT", str(len(line)))
        monkeypatch.delenv("COMP_WORD", raising=False)
        done = rlrun("-sc", f"query={shell}")
        assert (done.code, done.err) == (0, "")
        return done.out.splitlines()

    return ask


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlrun pl", ["play "]),
        ("rlrun policy=r2", ["policy=r2d2 ", "policy=r2d2_c51 ", "policy=r2d2_qr "]),
        ("rlrun policy=dqn policy.ns", ["policy.nstep="]),
        ("rlrun policy=ppo policy.et", []),
        ("rlrun policy.priority_e", ["policy.priority_eta="]),  # of r2d2, the default
        ("rlrun policy=ppo policy.cl", ["policy.clip_range."]),  # a schedule
        ("rlrun policy=ppo buffer.bet", []),  # it brings a rollout along
        ("rlrun policy=dqn se", ["seed="]),  # search. is a command's
        ("rlrun search search.tri", ["search.trials="]),
        ("rlrun -m policy=dqn,pp", ["policy=dqn,ppo "]),
        ("rlrun buffer.alp", ["buffer.alpha."]),  # r2d2 brings its buffer along
        ("rlrun run.stop_after=", ["run.stop_after=2 "]),
        ("rlrun resume outputs/other run.max", ["run.max_time="]),
        ("rlrun play x --v", ["--video "]),
        ("rlrun eval x --weights b", ["best "]),
        ("rlrun nothing", []),
        ("rlrun play outp", ["outputs/"]),
        ("rlrun play outputs/", ["outputs/a\\ run ", "outputs/other/"]),
        ("rlrun play outputs/a\\ r", ["outputs/a\\ run "]),
        ("rlrun play .h", [".hidden/"]),
        ("rlrun play nowhere/", []),
        ("rlrun codec --plot x.png b", ["bench "]),
        ("rlrun codec bench outputs/n", ["outputs/notes.txt "]),
    ],
)
def test_candidates(complete, line, expected):
    found = complete(line)
    assert found == expected or (line.endswith("alp") and found == ["buffer.alpha="])


def test_every_key_of_an_option_is_offered(complete):
    """A mapping up to its dot, then its parts."""
    table = Table()
    for group, option in (("policy", "iqn"), ("explore", "boltzmann"), ("pipeline", "ray")):
        for name, (value, _) in table.keys_of(group, option).items():
            text = f"{name}=" if value else f"{name}."
            assert text in complete(f"rlrun {group}={option} {name}"), name


def test_subcommands_and_their_flags(complete):
    commands = [text.strip() for text in complete("rlrun ") if "=" not in text]
    assert {"eval", "play", "resume", "report", "search", "doctor", "help"} <= {*commands}
    assert {"--video ", "--traces ", "--seed "} <= {*complete("rlrun play -")}
    for name in ("eval", "resume", "export", "codec", "report"):
        assert "--help " in complete(f"rlrun {name} -")


def test_own_yaml_files_are_options(complete):
    Path("yaml/policy").mkdir(parents=True)
    Path("yaml/policy/mine.yaml").write_text("defaults: [r2d2, _self_]\nlr: 1e-5\n")
    assert "policy=mine " in complete("rlrun --config-dir yaml policy=m")


def test_fish_is_given_whole_words(complete):
    assert complete("rlrun bonus=", "fish") == ["bonus=none", "bonus=rnd"]


def test_bash_completes_by_the_installed_function(complete, tmp_path):
    """With words split at = as bash does."""
    if shutil.which("bash") is None or shutil.which("rlrun") is None:
        pytest.skip("no bash, or rlrun is not installed")
    lines = {
        "rlrun policy=r2": ["r2d2 ", "r2d2_c51 ", "r2d2_qr "],
        "rlrun bonus=": ["none ", "rnd "],
        "rlrun play outputs/": ["outputs/a\\ run ", "outputs/other/"],
    }
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH], input="\n".join(lines) + "\n", capture_output=True,
        text=True, cwd=tmp_path, check=True, env=dict(os.environ),
    )  # fmt: skip
    installed, *answers = done.stdout.splitlines()
    assert installed.startswith("complete ")
    found = {line: text.split("|")[:-1] for line, text in zip(lines, answers, strict=True)}
    assert (found, done.stderr) == (lines, "")


def test_shells(rlrun, monkeypatch):
    monkeypatch.delenv("COMP_LINE", raising=False)
    for shell in ("bash", "zsh", "fish"):
        assert rlrun("-sc", f"install={shell}").code == 0
        assert rlrun("-sc", f"uninstall={shell}").code == 0
        assert_one_error(rlrun("-sc", f"query={shell}"))
