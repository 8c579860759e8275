"""``rlrun help`` and ``rlrun list``: every key has its facts, a misspelt word gets the nearest."""

import re
from importlib.util import find_spec

import pytest
from omegaconf import OmegaConf

from rlrun.cli.key_table import GROUPS, PRESETS, Table
from rlrun.env.conform import PROBES
from rlrun.schema.studies import COMMAND_CONFIGS
from tests.in_process import assert_one_error, files_under
from tests.installed import CONF, module_of
from tests.installed import PRESETS as ENVIRONMENTS


def leaves(value, prefix=""):
    """Full key -> value of a mapping, without its defaults list and the hydra node."""
    found = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, dict) and inner:
            found |= leaves(inner, f"{name}.")
        elif name not in ("defaults", "hydra"):
            found[name] = inner
    return found


def parsed(keys):
    """Full key -> value of the keys of the table."""
    texts = (f"{name}: {key.value}" for name, key in keys.items() if key.value)
    plain = OmegaConf.to_container(OmegaConf.create("\n".join(texts)), resolve=False)
    return leaves(plain)


def loaded(path, prefix=""):
    cfg = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return leaves({k: v for k, v in cfg.items() if k not in ("defaults", "hydra")}, prefix)


def test_the_table_has_the_keys_and_values_of_every_yaml():
    """As OmegaConf reads them, each with what is allowed."""
    table = Table()
    roots = [loaded(CONF / f"{name}.yaml") for name in ("config", *COMMAND_CONFIGS)]
    assert parsed(table.root) == {k: v for root in roots for k, v in root.items()}
    for group, about in GROUPS.items():
        paths = sorted((CONF / group).glob("*.yaml"))
        assert about
        assert [*table.options[group]] == [path.stem for path in paths]
        prefix = "" if group in PRESETS else f"{group}."
        for path in paths:
            keys = table.options[group][path.stem].keys
            assert parsed(keys) == loaded(path, prefix), path
            for name, key in keys.items():
                assert key.meaning or group in PRESETS, name
                assert key.source == [*key.comment.rsplit("; ", 1), ""][1], name
                given = "allowed" in table.facts.get(name, {})
                assert given or group in PRESETS or "kwargs." in name, name


@pytest.mark.parametrize(
    "option",
    ["policy=c51", "policy=iqn", "policy=rsac", "policy=bc_recurrent", "memory=gtrxl", "env=tmaze"],
)
def test_an_option_has_the_keys_that_it_starts_from(rlrun, composer, option):
    """``c51`` starts from ``dqn``, that from a base; ``iqn`` has a number for a schedule."""
    group, _, name = option.partition("=")
    cfg = OmegaConf.to_container(composer.compose([option])[group], resolve=False)
    composed, found = leaves(cfg, f"{group}."), Table().keys_of(group, name)
    assert parsed(found) == composed
    shown = " ".join(rlrun("help", option).out.split())
    for key, (value, _) in found.items():
        assert f" {key} = {value}" in shown


@pytest.mark.parametrize(
    ("word", "facts"),
    [("policy.nstep", "integer within [1, 100000] | Kapturowski et al. 2019"),
     ("policy.nstep", "experiment=r2d2_paper (5)"),
     ("policy.learn_unroll_len", "80 | burnin_step=40 | learn_unroll_len=85"),
     ("nstep", "policy.nstep: "), ("policy.gamma", "number within [0, 1]"),
     ("policy.max_grad_norm", "number > 0 or null"), ("seed", "integer within [0, 2^32)"),
     ("policy.state_init", "stored | zero"), ("torso.hidden", "list of integers within [1, 65536]"),
     ("policy.num_quantiles", "policy.distribution=implicit"),
     ("memory.forget_bias", "memory=lstm, mingru, mlstm or slstm"),
     ("env.total_steps", "run.total_steps"),
     ("policy.distribution", "policy.atoms | policy.v_min | policy.v_max"),
     ("policy.atoms", "see also policy.distribution"),
     ("policy.lr", "{kind: linear, start: 2e-3, end: 1e-4}"),
     ("env.length", "env.kwargs.length: | env=chain: number of states | env=tmaze: forward moves"),
     ("env.id", "env=gym: Gymnasium id, MODULE:ID | rlrun help environments"),
     ("environment", "gymnasium.register( | env.id=maze:Maze-v0"),
     ("environments of your own", "gymnasium.register("), ("gymnasium", "gymnasium.register("),
     ("register", "gymnasium.register("), ("your own yaml files", "--config-dir"),
     ("install", "rlrun[all] | imageio, FFmpeg"),
     ("Monitor", "Metrics | collect/return_mean"),
     ("policy.target_theta", "policy.target_theta is policy.target_tau now. | policy.target_tau: "),
     ("policy", "r2d2 | ppo | learn_unroll_len"), ("run", "total_steps"),
     ("policy=c51", "policy.atoms = 101 "), ("policy=rainbow", "buffer="),
     ("experiment=r2d2_paper", "policy.burnin_step = 40 "), ("ppo", "policy=ppo: "),
     ("none", "memory=none: | bonus="), ("sweep.dir", "Sweeps"),
     ("collector.num_envs", "  read by  every run"), ("exit codes", "75 | 130")],
)  # fmt: skip
def test_words(rlrun, word, facts):
    done = rlrun("help", *word.split())
    assert (done.code, done.err) == (0, "")
    text = re.sub(r"\s+", " ", done.out)
    for fact in facts.split(" | ") if word != "policy.state_init" else [facts]:
        assert re.sub(r"\s+", " ", fact) in text


@pytest.mark.parametrize(
    ("word", "guess"),
    [
        ("policy.nstp", "policy.nstep"), ("nstp", "policy.nstep"), ("learning_rate", "policy.lr"),
        ("polcy", "policy?"), ("policy=r2d3", "policy=r2d2"), ("resum", "resume?"),
        ("exit code", "exit codes?"), ("qqqqq", "rlrun --help"),
        ("norm_adv", "policy.normalize_advantage"), ("num-envs", "mean collector.num_envs?"),
        ("norm", "policy.normalize_obs"), ("save", "run.checkpoint_every"),
        ("predict", "; rlrun eval RUN_DIR"), ("capture_video", "run.video_every"),
        ("EvalCallback", "run.eval_every"), ("callback", "run.eval_every"),
        ("VecNormalize", "policy.normalize_obs"), ("anneal_lr", "mean policy.lr "),
    ],
)  # fmt: skip
def test_a_misspelt_word(rlrun, word, guess):
    assert_one_error(rlrun("help", *word.split()), f"rlrun help {word}: ", guess)


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


@pytest.mark.parametrize("text", ["defaults: 5", "defaults: [odd]", "a: &x {b: *x}"])
def test_a_user_s_odd_option_is_listed(rlrun, tmp_path, text):
    (tmp_path / "my/env").mkdir(parents=True)
    (tmp_path / "my/env/odd.yaml").write_text(text)
    for words in (["help", "env=odd"], ["help", "env.id"], ["list", "env", "odd"]):
        assert rlrun(*words, "--config-dir", "my").code == 0


# -- list ------------------------------------------------------------------------------------------


def test_list(rlrun, tmp_path):
    out = re.sub(r"\n {3,}", " ", rlrun("list").out)
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert all(len(line.split(None, 1)) == 2 for line in lines.values())
    for name in ("r2d2", "random", "cartpole_novel", "r2d2_paper", "delay_obs"):
        assert name in lines
    assert "float32 [6] -> Discrete 3" in lines["acrobot"]
    assert "experiment=zoo_dqn_cartpole, zoo_ppo_cartpole" in lines["cartpole"]
    for name in ENVIRONMENTS:
        module = module_of(name)
        absent = module is not None and find_spec(module) is None
        assert ("pip install " in lines[name]) == absent
        assert (" -> " in lines[name]) != absent
    _, _, variants = lines["conform"].partition(" conform_NAME: ")
    assert sorted(variants.split(", ")) == sorted(PROBES)
    assert not any(name.startswith("conform_") for name in lines)
    assert files_under(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("env CartPole_V", ["cartpole_v0"]),
        ("env pole velocities", ["cartpole_novel"]),  # words of its note
        ("env one row late", ["conform_late"]),
        ("env pick_obs", ["minigrid_memory_s13", "minigrid_memory_s7"]),
        ("policy soft-q", []),
        ("wrappers FLICKER", ["flicker_obs"]),
        ("torso", sorted(path.stem for path in CONF.glob("torso/*.yaml"))),
    ],
)
def test_list_filters_a_group(rlrun, words, first):
    """Words are looked for in name and text, in any case."""
    done = rlrun("list", *words.split())
    found = re.findall(r"^  (\S+)", done.out, re.MULTILINE)
    assert found[: len(first)] == first
    assert done.code == (0 if first else 2)


@pytest.mark.parametrize(
    ("words", "fix"),
    [("envv", "rlrun list env"), ("cart", "rlrun list env cart"), ("env qq", "env")],
)
def test_what_list_does_not_know(rlrun, words, fix):
    assert_one_error(rlrun("list", *words.split()), fix)
