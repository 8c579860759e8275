"""``rlrun help`` and ``rlrun list``: every key has its facts, a misspelt word gets the nearest."""

import re
from importlib.util import find_spec

import pytest
from omegaconf import OmegaConf

from tests.in_process import assert_one_error, files_under
from tests.installed import CONF, PRESETS, module_of

UNITED = ("experiment", "debug", "sweep", "hydra")  # their files hold keys of other groups
GROUPS = sorted(p.name for p in CONF.iterdir() if p.is_dir() and p.name[0] != "_")


def leaves(value, prefix=""):
    found = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        found |= leaves(inner, f"{name}.") if isinstance(inner, dict) and inner else {name: inner}
    return found


def values(cfg):
    plain = OmegaConf.to_container(cfg, resolve=False)
    return {k: v for k, v in plain.items() if k not in ("defaults", "hydra")}


def all_keys():
    """Key -> one of the files that hold it."""
    found = leaves(values(OmegaConf.load(CONF / "config.yaml")))
    for group in GROUPS:
        if group not in UNITED:
            for path in sorted((CONF / group).glob("*.yaml")):
                found |= leaves(values(OmegaConf.load(path)), f"{group}.")
    return sorted(found)


@pytest.mark.parametrize("start", range(8))
def test_a_key_of_any_yaml_has_its_facts(rlrun, start):
    """Its meaning, what is allowed, its defaults and what reads it; every 48th key each."""
    for name in all_keys()[start * 6 :: 48]:
        done = rlrun("help", name)
        assert (done.code, done.err) == (0, "")
        head, *lines = done.out.splitlines()
        assert head.startswith(f"{name}: ")
        labels = {line[:10].strip() for line in lines if line[:3].strip()}
        assert labels >= {"default", "read by"}
        assert "allowed" in labels or ".kwargs." in name or "eval_kwargs." in name


@pytest.mark.parametrize("group", ["policy", "memory", "buffer"])
def test_defaults_are_those_of_the_option(rlrun, composer, group):
    """Inherited keys included; ``c51`` starts from ``dqn``, which starts from a base."""
    for path in sorted((CONF / group).glob("*.yaml"))[::2]:
        option = f"{group}={path.stem}"
        composed = leaves(values(composer.compose([option]))[group], f"{group}.")
        shown = dict(re.findall(r"^  (\S+) = (.*?)(?:   .*)?$", rlrun("help", option).out, re.M))
        for name, value in composed.items():
            text = OmegaConf.to_container(OmegaConf.create(f"x: {shown[name].split('  ')[0]}"),
                                          resolve=False)["x"]  # fmt: skip
            assert text == value, f"{option}: {name}"


@pytest.mark.parametrize(
    ("word", "facts"),
    [("policy.nstep", "integer within [1, 100000] | Kapturowski et al. 2019"),
     ("policy.nstep", "experiment=r2d2_paper (5)"),
     ("nstep", "policy.nstep: "), ("policy.gamma", "number within [0, 1]"),
     ("policy.grad_clip", "number > 0 or null"), ("seed", "integer within [0, 2^32)"),
     ("policy.state_init", "stored | zero"), ("torso.hidden", "list of integers within [1, 65536]"),
     ("policy.taus", "policy.distribution=implicit"),
     ("memory.forget_bias", "memory=lstm or mingru"), ("env.total_steps", "run.total_steps"),
     ("policy.distribution", "policy.atoms | policy.v_min | policy.v_max"),
     ("policy.lr", "{kind: linear, start: 2e-3, end: 1e-4}"),
     ("env.length", "env.kwargs.length: "), ("policy.target_theta", "policy.target_tau: "),
     ("policy", "r2d2 | ppo | learn_unroll_len"), ("run", "total_steps"),
     ("policy=c51", "policy.atoms = 101 "), ("policy=rainbow", "buffer="),
     ("experiment=r2d2_paper", "policy.burnin_step = 40 "), ("ppo", "policy=ppo: "),
     ("none", "memory=none: | bonus="), ("sweep.dir", "Sweeps"), ("exit codes", "75 | 130")],
)  # fmt: skip
def test_words(rlrun, word, facts):
    done = rlrun("help", *word.split())
    assert (done.code, done.err) == (0, "")
    for fact in facts.split(" | ") if word != "policy.state_init" else [facts]:
        assert fact in done.out


@pytest.mark.parametrize(
    ("word", "guess"),
    [
        ("policy.nstp", "policy.nstep"), ("nstp", "policy.nstep"), ("learning_rate", "policy.lr"),
        ("polcy", "policy?"), ("policy=r2d3", "policy=r2d2"), ("resum", "resume?"),
        ("exit code", "exit codes?"), ("qqqqq", "rlrun --help"),
    ],
)  # fmt: skip
def test_a_misspelt_word(rlrun, word, guess):
    done = rlrun("help", *word.split())
    assert_one_error(done)
    assert f"rlrun help {word}: " in done.err
    assert guess in done.err


def test_a_word_beside_the_flag_and_none(rlrun):
    assert rlrun("help").out == rlrun("--help").out == rlrun("-h").out
    assert rlrun("--help", "memory").out == rlrun("help", "memory").out
    assert rlrun("memory", "--help").out == rlrun("help", "memory").out
    for word in ("policy", "env", "experiment", "torso", "memory", "debug", "doctor", "export"):
        assert word in rlrun("help").out


@pytest.mark.parametrize(
    ("command", "facts"),
    [("codec", "usage: rlrun codec"), ("export", "RUN_DIR DATA_DIR --shard-rows 65536"),
     ("doctor", "env=NAME")],
)  # fmt: skip
def test_a_subcommand(rlrun, command, facts):
    for words in (["help", command], [command, "--help"]):
        done = rlrun(*words)
        assert (done.code, done.err) == (0, "")
        assert all(fact in done.out for fact in facts.split())


def test_a_user_s_option(rlrun, tmp_path):
    (tmp_path / "my" / "policy").mkdir(parents=True)
    text = "# My R2D2\ndefaults: [r2d2, _self_]\nnstep: 7  # rows; mine\n"
    (tmp_path / "my" / "policy" / "slow.yaml").write_text(text)
    out = rlrun("help", "policy.nstep", "--config-dir", str(tmp_path / "my")).out
    assert re.search(r"\n +7  policy=slow  \(mine\)\n", out)
    assert re.search(r"  slow +My R2D2\n", rlrun("help", "policy", "-cd", "my").out)
    assert re.search(r"  slow +My R2D2\n", rlrun("list", "policy", "--config-dir", "my").out)


def test_the_examples_of_the_help_are_valid(rlrun, build):
    lines = [li.strip() for li in rlrun("--help").out.splitlines() if li.startswith("  rlrun ")]
    assert len(lines) >= 4
    for line in (line for line in lines if "=" in line):
        fewer = ["seed=0"] if "-m" in line else []  # the last one counts: a job per policy
        assert rlrun(*line.split()[1:], *fewer).code == 0, line
    assert len(build.run_dirs) >= 4


# -- list ------------------------------------------------------------------------------------------


def test_list(rlrun, tmp_path):
    out = rlrun("list").out
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert all(len(line.split(None, 1)) == 2 for line in lines.values())
    for name in ("r2d2", "random", "cartpole_novel", "r2d2_paper", "delay_obs"):
        assert name in lines
    assert "float32 [6] -> Discrete 3" in lines["acrobot"]
    for name in PRESETS:
        module = module_of(name)
        absent = module is not None and find_spec(module) is None
        assert ("pip install " in lines[name]) == absent
        assert (" -> " in lines[name]) != absent
    assert files_under(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("env CartPole_V", ["cartpole_v0"]),
        ("env pole velocities", ["cartpole_novel"]),  # words of its note
        ("env pick_obs", ["minigrid_memory_s13", "minigrid_memory_s7"]),
        ("policy soft-q", []),
        ("wrappers FLICKER", ["flicker_obs"]),
        ("torso", sorted(path.stem for path in CONF.glob("torso/*.yaml"))),
    ],
)
def test_list_filters_a_group(rlrun, words, first):
    """Words are looked for in name and text, in any case."""
    done = rlrun("list", *words.split())
    found = [text.split()[0] for text in done.out.splitlines()]
    assert found[: len(first)] == first
    assert done.code == (0 if first else 2)


@pytest.mark.parametrize(
    ("words", "fix"),
    [("envv", "rlrun list env"), ("cart", "rlrun list env cart"), ("env qq", "env")],
)
def test_what_list_does_not_know(rlrun, words, fix):
    done = rlrun("list", *words.split())
    assert_one_error(done)
    assert fix in done.err
