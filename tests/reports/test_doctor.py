"""``rlrun doctor RUN_DIR``: a sick run for every rule, and healthy ones.

A sick run is a run of ``healthy/`` some of whose metrics and keys were written over.
"""

import json
import re
import shutil
from dataclasses import replace

import pytest
import yaml

from rlrun.cli.key_table import Table
from rlrun.reports.doctor import diagnosis
from rlrun.reports.doctor.diagnosis import report_lines
from rlrun.reports.doctor.evidence import Evidence
from rlrun.reports.runs import read_run
from rlrun.run.files import lock_run_dir, read_record, seal
from tests.compose import config
from tests.reports.forge import forge, forge_sweep
from tests.reports.sick_runs import CASES, HEALTHY, Case, flat, noise, returns, sick

RUNS = ("dqn", "ppo", "r2d2", "tmaze", "sac")


def diagnose(run):
    return diagnosis.diagnose(Evidence(run))


def rules_checked(run):
    """How many rules had records to look at in a run without a finding, and how many there are."""
    (line,) = report_lines(run)
    return tuple(map(int, re.search(r"(\d+) of (\d+) rules", line).groups()))


def copy_of(name, path):
    return shutil.copytree(HEALTHY / name, path)


@pytest.fixture(scope="module")
def findings_of(tmp_path_factory):
    """What is found in the sick run of a name, made once."""
    top, found = tmp_path_factory.mktemp("sick"), {}

    def findings(name):
        if name not in found:
            found[name] = diagnose(sick(CASES[name], top / name))
        return found[name]

    return findings


@pytest.mark.parametrize("name", CASES)
def test_a_sick_run_has_its_finding_and_no_other(findings_of, name):
    found = findings_of(name)
    assert [*found] == [name]
    assert found[name].tries, "something to try"
    listed = Table().metrics
    files = ("rlrun.log", "run.json", "metrics.jsonl", "collect/restarts")
    assert all(metric in listed or metric in files for metric in found[name].look.split())


@pytest.mark.parametrize("name", RUNS)
def test_help_explains_every_metric_of_a_run(name):
    files = [HEALTHY / name / f"{part}.jsonl" for part in ("metrics", "timings")]
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    names = {key for record in records for key in record if "/" in key}
    assert len(names) > 30
    assert names <= {*Table().metrics}


def test_every_rule_has_a_sick_run():
    assert rules_checked(read_run(HEALTHY / "ppo"))[1] == len(CASES)


@pytest.mark.parametrize("name", RUNS)
def test_a_healthy_run_has_none(name, tmp_path):
    """Also where no stop_return says that it is solved."""
    for run in (
        read_run(HEALTHY / name),
        sick(Case(name, keys={"run.stop_return": None}), tmp_path / name),
    ):
        assert diagnose(run) == {}
        assert 30 <= rules_checked(run)[0] < len(CASES)  # some are on metrics of other policies


def test_what_is_tried_is_accepted(findings_of):
    """Every override of every finding composes with the config of its run and passes its checks."""
    bases = {
        "dqn": ("policy=dqn", "env=cartpole"), "ppo": ("policy=ppo", "env=cartpole"),
        "r2d2": ("policy=r2d2", "env=cartpole"), "tmaze": ("policy=r2d2", "env=tmaze"),
        "sac": ("policy=sac", "env=pendulum"),
    }  # fmt: skip
    tried = {}
    for name, case in CASES.items():
        for words in findings_of(name)[name].tries:
            key, equals, value = words.partition("=")
            if equals:
                tried.setdefault(case.run, {})[key] = value
    assert len({key for keys in tried.values() for key in keys}) > 20
    alone = ("learner.update_per_collect", "collector.residual", "policy.lr.over", "policy.lr.kind",
             "memory", "policy.lr")  # fmt: skip
    for run, keys in tried.items():
        together = [f"{key}={value}" for key, value in keys.items() if key not in alone]
        config(*bases[run], *together)
        for key in set(keys) & {"policy.lr.over", "policy.lr.kind", "policy.lr"}:
            config(*bases[run], f"{key}={keys[key]}")


def test_what_changes_nothing_is_not_tried(tmp_path):
    """A key that has the value already, and one of 0, which no factor changes."""
    keys = {"learner.replay_ratio": 0, "torso.activation": "elu"}
    run = sick(replace(CASES["dead units"], keys=keys), tmp_path / "run")
    assert diagnose(run)["dead units"].tries == ["policy.lr=0.0003"]


def test_an_on_policy_run_without_any_reward_is_normalised(tmp_path):
    """By both running statistics; the one that is there already is left out."""
    obs, reward = "policy.normalize_obs=true", "policy.normalize_reward=true"
    for i, (keys, first) in enumerate([({}, f"{obs} {reward}"),
                                       ({"policy.normalize_obs": True}, reward)]):  # fmt: skip
        run = sick(Case("ppo", returns(-200.0), keys), tmp_path / str(i))
        assert diagnose(run)["constant score"].tries[:2] == [first, "bonus=rnd"]
    assert CASES["constant score"].run == "dqn"
    found = diagnose(sick(CASES["constant score"], tmp_path / "dqn"))
    assert found["constant score"].tries[0] == "bonus=rnd"


def test_normalised_rewards_are_neither_tiny_nor_to_be_scaled(tmp_path):
    own = {"policy.normalize_reward": True}
    run = sick(replace(CASES["tiny rewards"], run="ppo", keys=own), tmp_path / "tiny")
    assert "tiny rewards" not in diagnose(run)
    run = sick(replace(CASES["large errors"], keys=own), tmp_path / "large")
    assert diagnose(run)["large errors"].tries == ["policy.lr=0.0003"]


def test_advice_fits_the_policy(tmp_path):
    """PPO has no replay and no epsilon, whatever is found; no metric is named that is not there."""
    whole = yaml.safe_load((HEALTHY / "ppo/config.yaml").read_text())
    for name, case in [*CASES.items()][::2]:
        known = {key: value for key, value in case.keys.items() if key.partition(".")[0] == "run"
                 or key.rpartition(".")[2] in whole.get(key.partition(".")[0], {})}  # fmt: skip
        run = sick(Case("ppo", case.metrics, known), tmp_path / name)
        recorded = (run.path / "metrics.jsonl").read_text()
        for finding in diagnose(run).values():
            words = " ".join(finding.tries)
            assert not any(part in words for part in ("buffer.", "explore.", "learner.replay"))
            groups = ("train/", "buffer/", "collect/", "eval/")
            seen = [metric for metric in finding.look.split() if metric.startswith(groups)]
            assert all(f'"{metric}"' in recorded for metric in seen)


# -- the command -----------------------------------------------------------------------------------


def test_command(rlrun, tmp_path):
    """A directory, several, a sweep; other words are refused."""
    sick(CASES["dead units"], tmp_path / "a,policy=dqn")
    copy_of("ppo", tmp_path / "b")
    done = rlrun("doctor", str(tmp_path / "a,policy=dqn"))
    assert (done.code, done.err) == (0, "")
    for fact in ("a,policy=dqn", "1 finding", "75%", "35%", "policy.lr=0.0003",
                 "learner.replay_ratio=32", "train/dead_units"):  # fmt: skip
        assert fact in done.unwrapped
    forge_sweep(tmp_path, [("a,policy=dqn", "done"), ("b", "done")])
    both = rlrun("doctor", str(tmp_path))
    assert both.out.startswith(done.out)
    assert both.unwrapped.splitlines()[-1].startswith("b: ")
    nowhere = rlrun("doctor", str(tmp_path / "nowhere"))
    assert (nowhere.code, nowhere.out) == (2, "")


def test_a_stopped_run_has_the_env_steps_of_its_record(tmp_path):
    """The last record of metrics.jsonl is of an earlier step."""
    for status, code in (("interrupted", 75), ("failed", 4)):
        record = {"status": status, "exit_code": code, "env_steps": 22_109}
        run = sick(Case("dqn", record=record), tmp_path / status)
        assert " 22109 env steps" in diagnose(run)[status].symptom


def test_the_line_to_resume_names_packages_of_users(tmp_path):
    stopped = {"status": "interrupted", "exit_code": 75}
    command = ["rlrun", "policy=dqn", "--trust", "losses"]
    case = Case("dqn", {}, {"env.id": "mine:Game-v0"}, stopped | {"command": command})
    tries = diagnose(sick(case, tmp_path / "run"))["interrupted"].tries
    assert tries == [f"rlrun resume {tmp_path / 'run'} --trust losses,mine"]


def test_a_run_without_records_is_too_early(tmp_path):
    path = copy_of("dqn", tmp_path / "run")
    (path / "metrics.jsonl").write_text("")
    record = read_record(path) | {"status": "running", "eval": None}
    (path / "run.json").write_bytes(seal(record))
    with lock_run_dir(path):
        assert len([*report_lines(read_run(path))]) == 1
    assert [*diagnose(read_run(path))] == ["interrupted"], "a killed one: no process has it"


def test_a_run_that_was_interrupted_before_it_began(tmp_path):
    path = copy_of("dqn", tmp_path / "run")
    for name in ("run.json", "metrics.jsonl", "timings.jsonl"):
        (path / name).unlink()
    found = diagnose(read_run(path))
    assert [*found] == ["interrupted"]
    assert f"rlrun resume {path}" in found["interrupted"].tries[0]


def test_ok_is_said_of_rules_with_records_only(tmp_path):
    path = copy_of("r2d2", tmp_path / "run")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in line.items() if not k.startswith("buffer/")} for line in lines]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert rules_checked(read_run(path))[0] < rules_checked(read_run(HEALTHY / "r2d2"))[0] - 2


# -- hostile runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{", "[]", "policy: [", "policy: {name: 3}", "run: \x00"])
def test_a_strangers_config(text, tmp_path):
    """Any values: a line, no traceback."""
    path = copy_of("dqn", tmp_path / "run")
    (path / "config.yaml").write_text(text)
    assert [*report_lines(read_run(path))]


@pytest.mark.parametrize("value", [0, -1, 1e308, "nan", [], True, None, "${policy.lr}"])
def test_hostile_values_of_keys(value, tmp_path):
    """Keys that rules compute with may be anything."""
    whole = yaml.safe_load((HEALTHY / "tmaze/config.yaml").read_text())
    path = copy_of("tmaze", tmp_path / "run")
    names = ("policy", "buffer", "run", "learner", "explore", "collector", "eval")
    other = {**whole, **{n: dict.fromkeys(whole[n], value) for n in names}}
    other["policy"] |= {"name": "r2d2"}
    (path / "config.yaml").write_text(yaml.safe_dump(other))
    assert [*report_lines(read_run(path))]


@pytest.mark.parametrize("value", [0.0, -1.0, 1e308, -1e308, 1e-308])
@pytest.mark.parametrize("name", ["tmaze", "ppo"])
def test_hostile_values_of_metrics(name, value, tmp_path):
    """All metrics, or all but the score; each finding that comes of them can be printed."""
    lines = (HEALTHY / name / "metrics.jsonl").read_text().splitlines()
    names = {key for line in lines for key in json.loads(line)} - {"env_steps"}
    for part in (names, {key for key in names if "return" not in key}):
        path = tmp_path / str(len(part))
        run = sick(Case(name, dict.fromkeys(part, value), {"policy.reward_scale": 1e-300}), path)
        assert all(map(str.isprintable, "".join(report_lines(run)).replace("\n", "")))


# -- borders of rules ------------------------------------------------------------------------------

LEAST = {"collect/return_min": 9.0, "eval/return_min": 9.0, "collect/return_max": 500.0}
BEST = {"eval/return_mean": 500.0, "eval/return_max": 500.0} | LEAST
VANISHED = {"train/grad_norm": 1e-9}
NO_STOP, UNFINISHED = {"run.stop_return": None}, {"run.total_steps": 22_031}
SHORT = {"policy.gamma": 0.1}
AGED = {"policy.gamma": 0.1, "policy.state_init": "zero", "policy.burnin_step": 0}
ENTROPY = returns(1.0) | {
    "eval/return_mean": lambda x: x, "collect/length_mean": 100.0, "eval/return_std": 0.1,
    "train/q_taken": lambda x: 1 + 30 * x, "train/entropy": 1.4,
}  # fmt: skip
CERTAIN = LEAST | {"train/entropy": 0.002, "collect/action_entropy": 0.004,
                   "eval/return_std": 0.0, "eval/return_max": 400.0}  # fmt: skip
RISEN = dict.fromkeys(("eval/return_mean", "collect/return_mean"), lambda x: min(400, 9 + 4e3 * x))
FALLEN = dict.fromkeys(RISEN, lambda x: 9 + 391.0 * (0.1 < x < 0.5))
ENDLESS = BEST | {"eval/cut_episodes": 20.0}
WIDE = {"eval/return_mean": lambda x: 9 + x, "collect/return_mean": 20.0, "eval/return_std": 0.5}
BORDERS = {
    "what follows from another is left out, the most severe comes first": (
        Case("dqn", {"train/loss": lambda x: 0.01 * 1e5**x} | flat(9.3),
             {"policy.lr.over": 10**7}, {"rollbacks": 2}),
        ["rollbacks", "loss grows", "schedule outlasts run"],
    ),
    "stored states come before the horizon": (
        Case("r2d2", {"train/delta_q_zero_last": 1.4} | flat(30.0), AGED),
        ["stale states", "short horizon"],
    ),
    "a run that has reached run.stop_return is not accused": (
        Case("dqn", VANISHED, {"run.stop_return": 1.0}), []),
    "without stop_return a policy with the largest return there is is at its end": (
        Case("dqn", BEST | VANISHED, NO_STOP), []),
    "one that has not is not": (
        Case("dqn", BEST | VANISHED | {"eval/return_mean": 400.0}, NO_STOP), ["gradients vanish"]),
    "one that fails has no progress": (
        Case("dqn", flat(9.3) | LEAST, NO_STOP | UNFINISHED), ["no progress"]),
    "one return in all episodes": (
        Case("dqn", returns(10.0) | {"train/q_taken": 5.0}, NO_STOP | UNFINISHED),
        ["constant score"],
    ),
    "a policy learned from data may have it from its first evaluation on": (
        Case("dqn", returns(10.0) | {"train/q_taken": 5.0},
             NO_STOP | UNFINISHED | {"pipeline.name": "offline"}), []),
    "a short horizon is no fault of a run that learns": (Case("r2d2", keys=SHORT), []),
    "a certain policy that holds its best score, short of the luckiest episode": (
        Case("ppo", RISEN | CERTAIN, NO_STOP), []),
    "one that lost it again": (
        Case("ppo", FALLEN | CERTAIN, NO_STOP), ["entropy collapsed", "forgetting"]),
    "endless episodes of an interrupted run with the largest return": (
        Case("dqn", ENDLESS, NO_STOP, {"status": "interrupted", "exit_code": 75}),
        ["interrupted", "endless episodes"]),
    "endless episodes that reach stop_return": (
        Case("dqn", ENDLESS, {"run.stop_return": 475.0}), []),
    "it is one of a run that does not": (Case("r2d2", WIDE, SHORT), ["short horizon"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BORDERS)
def test_borders(name, tmp_path):
    case, expected = BORDERS[name]
    found = diagnose(sick(case, tmp_path / "run"))
    assert [*found] == expected
    if "stale states" in found:
        assert all(one.tries[0] == "policy.state_init=stored" for one in found.values())


def test_a_peak_is_not_in_what_it_fell_to(tmp_path):
    """A peak within the last third; one whose own episodes differ that much is noise."""
    names = ("eval/return_mean", "collect/return_mean")
    peak = dict.fromkeys(names, lambda x: 300.0 if 0.75 < x <= 0.85 else 10 + noise(x))
    run = sick(Case("dqn", peak | {"eval/return_std": 5.0}), tmp_path / "a")
    symptom = diagnose(run)["forgetting"].symptom
    best, since = map(float, re.findall(r"(\d+) env steps", symptom))
    assert 22_031 * 0.75 < best < since <= 22_031
    assert re.search(r"\b(10|9\.\d+)\b", symptom)
    wide = peak | {"eval/return_std": lambda x: 900.0 if 0.75 < x <= 0.85 else 5.0}
    noisy = sick(Case("dqn", wide, UNFINISHED), tmp_path / "b")
    assert [*diagnose(noisy)] == ["no progress"]


def test_one_low_evaluation_after_the_best_is_no_loss(tmp_path):
    """Of five evaluations the last third is one, of six it is two."""
    high = (0.0, 99.0, 100.0, 99.0)
    for count, expected in ((1, False), (2, True)):
        run = read_run(forge(tmp_path / str(count), returns=(*high, *[0.0] * count)))
        assert ("forgetting" in diagnose(run)) == expected


def test_action_values_of_sac_hold_its_entropy(tmp_path):
    for temperature, expected in ((0.01, True), (0.2, False)):
        case = Case("sac", ENTROPY | {"train/temperature": temperature})
        run = sick(case, tmp_path / str(temperature))
        assert ("overestimation" in diagnose(run)) == expected


def test_the_entropy_of_one_action_is_none(tmp_path):
    """Records of a few rows say nothing of what a policy does."""
    run = sick(CASES["one action"], tmp_path / "run")
    path = run.path / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [json.dumps(record | {"env_steps": 1 + i}) for i, record in enumerate(records)]
    path.write_text("\n".join(lines) + "\n")
    assert "one action" not in diagnose(read_run(run.path))


@pytest.mark.parametrize(("kind", "tried"), [("linear", True), ("constant", False)])
def test_the_end_of_an_epsilon_is_tried_where_it_is_read(kind, tried, tmp_path):
    epsilon = {"explore.epsilon.kind": kind, "explore.epsilon.end": 0.01}
    keys = {"explore.name": "schedule"} | epsilon
    found = diagnose(sick(replace(CASES["one action"], keys=keys), tmp_path / "run"))
    assert ("explore.epsilon.end=0.05" in found["one action"].tries) == tried


def test_a_run_that_has_not_come_to_learn_is_not_accused(tmp_path):
    keys = {"learner.learning_starts": 25_000}
    case = CASES["no updates"]
    early = sick(replace(case, keys=keys), tmp_path / "early")
    assert "no updates" not in diagnose(early)
    short = sick(replace(case, record={"updates": 20}), tmp_path / "short")  # than logger.every
    assert "no updates" not in diagnose(short)


def test_no_advice_against_what_an_experiment_sets_on_purpose(tmp_path):
    run = sick(CASES["short horizon"], tmp_path / "run")
    keys = {"policy.gamma": "${env.gamma}", "env.gamma": 0.1}
    of_env = sick(Case("r2d2", CASES["short horizon"].metrics, keys), tmp_path / "of_env")
    for typed, expected in ((["policy=r2d2"], False), (["env.gamma=0.1"], True)):
        found = diagnose(replace(of_env, overrides=tuple(typed)))
        assert ("short horizon" in found) == expected
    for typed, expected in (
        (["experiment=r2d2_repeat_previous", "seed=1"], False),
        (["experiment=r2d2_repeat_previous", "policy.gamma=0.1"], True),
        (["experiment=r2d2_repeat_previous", "env=cartpole"], True),
        (["policy=r2d2"], True),
    ):
        found = diagnose(replace(run, overrides=tuple(typed)))
        assert ("short horizon" in found) == expected


@pytest.mark.parametrize(
    ("keys", "tries"),
    [({"kind": "exponential", "over": 10**6}, "explore.epsilon.over=6609"),
     ({"kind": "constant", "over": None},
      "'explore.epsilon={kind:linear,start:1,end:0.05,over:6609}'")],
)  # fmt: skip
def test_what_is_tried_against_exploration(keys, tries, tmp_path):
    """A constant epsilon has no period."""
    keys = {f"explore.epsilon.{name}": value for name, value in keys.items()}
    case = Case("dqn", {"collect/epsilon_mean": 0.9}, keys | UNFINISHED)
    assert diagnose(sick(case, tmp_path / "run"))["still exploring"].tries == [tries]


@pytest.mark.parametrize(("rows", "envs", "tried"), [(9, 4, True), (1, 1, False)])
def test_a_key_that_nothing_reads_is_not_tried(rows, envs, tried, tmp_path):
    keys = {"policy.nstep": 2, "policy.learn_unroll_len": rows + 2, "policy.priority_eta": 0.9}
    ladder = {"explore.name": "ladder", "explore.base_epsilon": 0.9, "collector.num_envs": envs}
    collapsed = replace(CASES["priorities collapsed"], keys=keys)
    exploring = Case("dqn", {"collect/epsilon_mean": 0.9}, ladder | UNFINISHED)
    for symptom, key, case in (
        ("priorities collapsed", "policy.priority_eta=", collapsed),
        ("still exploring", "explore.base_epsilon=", exploring),
    ):
        words = diagnose(sick(case, tmp_path / key))[symptom].tries
        assert any(word.startswith(key) for word in words) == tried
