"""``rlrun help KEY|GROUP|TOPIC``: every key has an entry, and a misspelt word gets the nearest."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rlrun.cli.help import Reference, help_lines
from rlrun.cli.list import TOPICS
from rlrun.cli.yaml_keys import PRESETS, option_keys, shipped, yamls
from rlrun.config import Composer
from rlrun.schema.spelling import RENAMED
from tests.in_process import Done

ROOT = Path(__file__).parents[2]
CONF = shipped()
REFERENCE = Reference(None)
GROUPS = sorted(p.name for p in CONF.iterdir() if p.is_dir() and not p.name.startswith("_"))


def leaves(value: dict[Any, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, inner in value.items():
        full = f"{prefix}{key}"
        found |= leaves(inner, f"{full}.") if isinstance(inner, dict) and inner else {full: inner}
    return found


def values(cfg: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(plain, dict)
    return {k: v for k, v in plain.items() if k not in ("defaults", "hydra")}


def test_every_key_of_every_yaml_has_an_entry() -> None:
    """Counted by OmegaConf, not by the parser of the help."""
    tasks = CONF / "bench_tasks.yaml"  # a table of tasks, not of keys
    for path in sorted({*CONF.rglob("*.yaml")} - {*CONF.glob("hydra/**/*"), tasks}):
        group = path.relative_to(CONF).parts[0]
        group = group.replace("_base", "policy")
        prefix = "" if group in (*PRESETS, "_root", path.name) else f"{group}."
        for name in leaves(values(OmegaConf.load(path)), prefix):
            assert name in REFERENCE.keys, f"{path}: {name}"


@pytest.mark.parametrize("name", sorted(REFERENCE.keys))
def test_an_entry(name: str) -> None:
    """Meaning, type, default and readers."""
    for option, key in REFERENCE.keys[name].items():
        assert key.meaning or not key.value, f"{option} has no comment"
    head, *lines = REFERENCE.key(name)
    assert head.startswith(f"{name}: ")
    assert len(head) > len(f"{name}: ") or not next(iter(REFERENCE.keys[name].values())).value
    labels = {line[:10].strip() for line in lines if line[2] != " "}
    free = name.startswith(("env.kwargs.", "env.eval_kwargs."))
    assert labels >= {"default", "read by"} | (set() if free else {"allowed"})
    assert all(len(line) <= 100 for text in lines for line in text.splitlines())


@pytest.mark.parametrize("group", [g for g in GROUPS if g not in PRESETS])
def test_defaults_are_those_of_the_option(composer: Composer, group: str) -> None:
    """Inherited keys included; ``c51`` starts from ``dqn``, which starts from a base."""
    for option in yamls(group):
        cfg = values(composer.compose([f"{group}={option}"]))[group]
        keys = {n: k.value for n, k in option_keys(group, option).items() if k.value}
        expected = leaves(cfg, f"{group}.")
        assert keys.keys() == expected.keys(), option
        for name, value in expected.items():
            text = OmegaConf.to_container(OmegaConf.create(f"x: {keys[name]}"), resolve=False)
            assert isinstance(text, dict)
            assert text["x"] == value, f"{option}: {name}"


def test_a_key(rlrun: Callable[..., Done]) -> None:
    done = rlrun("help", "policy.nstep")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "policy.nstep: rows of reward before bootstrapping"
    assert lines[1] == "  allowed  integer >= 1"
    source = "(Kapturowski et al. 2019, Table 2)"
    assert lines[2] == f"  default  5  policy=r2d2, drqn, r2d2_c51, r2d2_qr  {source}"
    assert "policy.burnin_step" in done.out[done.out.index("see also") :]
    assert rlrun("help", "nstep").out == done.out
    assert "experiment=r2d2_paper (5)" in done.out


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("policy.gamma", "allowed  number within [0, 1]\n"),
        ("policy.grad_clip", "allowed  number > 0 or null\n"),
        ("seed", "allowed  integer within [0, 2^32)\n"),
        ("policy.state_init", "allowed  stored | zero\n"),
        ("torso.hidden", "allowed  list of integers > 0\n"),
        ("policy.taus", " policy.distribution=implicit\n"),
        ("memory.forget_bias", "runs with memory=lstm or mingru with a policy that has a memory\n"),
        ("env.total_steps", "read by  run.total_steps, whose default it is\n"),
        ("policy.distribution", "see also policy.atoms, policy.v_min, policy.v_max"),
        ("explore.temperature", "default  null"),
        ("policy.lr", "{kind: linear, start: 2e-3, end: 1e-4}"),
        ("env.length", "env.kwargs.length: "),
        ("policy.target_theta", "policy.target_tau: soft target step"),
        ("capacity", "buffer.capacity: "),
        ("policy", "\nkeys, policy.KEY: name, learn_unroll_len"),
        ("run", "keys, run.KEY: dir, total_steps"),
        ("policy=c51", "policy.atoms = 101 "),
        ("policy=rainbow", "chooses buffer="),
        ("experiment=r2d2_paper", "policy.burnin_step = 40 "),
    ],
)
def test_words(rlrun: Callable[..., Done], word: str, text: str) -> None:
    done = rlrun("help", word)
    assert (done.code, done.err) == (0, "")
    assert text in done.out


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic(rlrun: Callable[..., Done], topic: str) -> None:
    """A section of a README, as it is there."""
    done = rlrun("help", *topic.split())
    assert (done.code, done.err) == (0, "")
    room, title = TOPICS[topic]
    lines = done.out.splitlines()
    assert lines[0] == title
    assert len(lines) > 5
    text = (ROOT / "rlrun" / room / "README.md").read_text("utf-8")
    assert {line for line in lines[1:] if "http" not in line} - {*text.splitlines()} <= {
        re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", line) for line in text.splitlines()
    }


@pytest.mark.parametrize(
    ("word", "guess"),
    [
        ("policy.nstp", "did you mean policy.nstep"),
        ("nstp", "did you mean policy.nstep"),
        ("learning_rate", "did you mean policy.lr or bonus.lr?"),
        ("polcy", "did you mean policy?"),
        ("policy=r2d3", "or policy=r2d2"),
        ("resum", "did you mean resume?"),
        ("exit code", "did you mean exit codes?"),
        ("qqqqq", "rlrun --help shows the groups"),
    ],
)
def test_a_misspelt_word(rlrun: Callable[..., Done], word: str, guess: str) -> None:
    done = rlrun("help", *word.split())
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"rlrun: error: rlrun help {word}: ")
    assert guess in done.err
    assert done.err.count("\n") == 1


def test_former_keys_are_gone() -> None:
    for old, new in RENAMED.items():
        assert old not in REFERENCE.keys
        assert new in REFERENCE.keys


def test_a_subcommand(rlrun: Callable[..., Done], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        rlrun("help", "codec")
    assert caught.value.code == 0
    assert "usage: rlrun codec" in capsys.readouterr().out


def test_without_a_word(rlrun: Callable[..., Done]) -> None:
    assert rlrun("help").out == rlrun("--help").out


def test_a_user_s_option(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "my" / "policy").mkdir(parents=True)
    text = "# My R2D2\ndefaults: [r2d2, _self_]\nnstep: 7  # rows; mine\n"
    (tmp_path / "my" / "policy" / "slow.yaml").write_text(text)
    done = rlrun("help", "policy.nstep", "--config-dir", str(tmp_path / "my"))
    assert "\n           7  policy=slow  (mine)\n" in done.out
    assert "  slow          My R2D2\n" in rlrun("help", "policy", "-cd", str(tmp_path / "my")).out


@pytest.mark.parametrize("word", ["policy.nstep", "policy", "policy=r2d2", "polcy.nstp"])
def test_is_quick(word: str) -> None:
    """Nothing heavy is imported; measured: 0.2 s of CPU time."""
    heavy = "{'torch', 'hydra', 'omegaconf', 'yaml', 'numpy', 'gymnasium'}"
    code = (
        "import sys; from rlrun.cli.main import main; main(sys.argv[1:]); "
        f"print({heavy} & {{*sys.modules}}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "help", word],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == "set()", done.stderr


@pytest.mark.parametrize("word", ["sweep.dir", "hydra.launcher.workers", "hydra/launcher=local"])
def test_words_of_sweeps_have_their_topic(word: str) -> None:
    assert next(iter(help_lines(word))).startswith("Sweeps\n")


@pytest.mark.parametrize(
    ("word", "heads"),
    [("ppo", ["policy=ppo: "]), ("LSTM", ["memory=lstm: "]), ("none", ["memory=none: ", "bonus="])],
)
def test_an_option_by_its_name_alone(word: str, heads: list[str]) -> None:
    lines = list(help_lines(word))
    assert all(any(line.startswith(head) for line in lines) for head in heads)


def test_a_word_beside_the_flag(rlrun: Callable[..., Done]) -> None:
    assert rlrun("--help", "memory").out == rlrun("help", "memory").out
    assert rlrun("memory", "--help").out == rlrun("help", "memory").out
