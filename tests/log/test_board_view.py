"""Runs under short names, with the columns in which they differ."""

import json
import math
import os
import shutil
import socket

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from rlrun.cli.main import main
from rlrun.errors import ConfigError
from rlrun.log.tensorboard import declare
from rlrun.log.trial import TrialRow, short_number, trial_name
from rlrun.run.hparams import settings_of, trial_of, typed_settings
from rlrun.run.tensorboard import BoardView
from tests.log.boards import board
from tests.reports.forge import forge

CONFIG = {"policy": {"name": "dqn", "lr": 1e-3}, "env": {"id": "ALE/Pong-v5"}, "seed": 3}


def row(directory):
    """(group name, {column: differs}, {setting: value}) that TensorBoard reads in a directory."""
    events = EventAccumulator(str(directory)).Reload()
    content = {
        tag: events.SummaryMetadata(tag).plugin_data.content
        for tag in events.PluginTagToContent("hparams")
    }
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG])
    experiment = metadata.parse_experiment_plugin_data(content[metadata.EXPERIMENT_TAG])
    columns = {info.name: info.differs for info in experiment.hparam_infos}
    values = {k: getattr(v, v.WhichOneof("kind")) for k, v in start.hparams.items()}
    return start.group_name, columns, values


@pytest.fixture
def view(tmp_path):
    path = tmp_path / "view"
    path.mkdir()
    return path


def test_names_and_columns_are_what_differs(tmp_path, view):
    for seed in (0, 1):
        for lr in (1e-3, 1e-4):
            board(tmp_path / f"outputs/{seed}_{lr}", seed=seed, lr=lr)
    forge(tmp_path / "outputs/no_events")
    shown = BoardView([str(tmp_path / "outputs")], view)
    names = [f"s{seed}-lr{lr}" for seed in (0, 1) for lr in ("1e-3", "1e-4")]
    assert sorted(p.name for p in view.iterdir()) == names
    for name in names:
        group, columns, values = row(view / name)
        assert group == name
        assert columns == {"policy": False, "env": False, "seed": True, "policy.lr": True}
        assert values["seed"] == name[1]
    events = EventAccumulator(str(view / names[0])).Reload()
    assert events.Scalars("run/env_steps")[-1].value == 3000
    first = tmp_path / "outputs/0_0.001"
    assert row(first)[0] == "r2d2-cartpole-s0-lr1e-3 12:00:03", "also in a plain tensorboard"

    board(tmp_path / "outputs/later", seed=1, lr=1e-3)  # the same settings again
    board(tmp_path / "outputs/no_events", seed=7, lr=1e-3)
    assert not shown.refresh(), "the columns are the same"
    new = {p.name for p in view.iterdir()} - {*names}
    assert new == {"s1-lr1e-3-2", "s7-lr1e-3"}
    extra = tmp_path / "outputs/later/events.out.tfevents.1999999999.a.1.0"  # of a resume
    extra.write_bytes(b"")
    shown.refresh()
    assert (view / "s1-lr1e-3-2" / extra.name).is_symlink()
    shutil.rmtree(tmp_path / "outputs")
    with pytest.raises(ConfigError):
        shown.refresh()


def test_seeds_of_one_setting_have_names_of_one_form(tmp_path, view):
    """Seed 0 needs its budget in its name because a longer run has that seed too."""
    for seed, total in ((0, 9000), (0, 400), (1, 400)):
        typed = ["policy=dqn", f"seed={seed}"] + ["run.total_steps=400"] * (total == 400)
        path = tmp_path / f"outputs/{seed}_{total}"
        run = forge(path, overrides=typed, seed=seed, run__total_steps=total)
        (run / "events.out.tfevents.1700000000.a.1.0").write_bytes(b"")
    BoardView([str(tmp_path / "outputs")], view)
    names = sorted(p.name for p in view.iterdir())
    assert [n for n in names if "400" in n] == ["s0-total_steps400", "s1-total_steps400"], names


def test_every_run_has_the_columns_of_all_with_the_values_in_force(tmp_path, view):
    """Defaults are no blanks; names are what differs; a later key rewrites all rows."""
    capacity = {"buffer__capacity": 60000, "policy__lr": {"start": 0.01, "end": 0.001}}
    given = {
        "a": (["policy.lr=1"], {"policy__lr": 1}),
        "b": (["policy.gamma=0.1"], {"policy__gamma": 0.1}),
        "c": (["buffer.capacity=300"], {"buffer__capacity": 300}),
        "d": ([], {}),
    }
    for name, (typed, values) in given.items():
        typed = ["policy=dqn", "env=cartpole", *typed]
        run = {"policy__name": "dqn", "policy__gamma": 0.99} | capacity | values
        run_dir = forge(tmp_path / "outputs" / name, overrides=typed, **run)
        (run_dir / "events.out.tfevents.1700000000.a.1.0").write_bytes(b"")
    shown = BoardView([str(tmp_path / "outputs")], view)
    names = {"capacity300", "dqn-cartpole-s0", "gamma0.1", "lr1"}
    assert {p.name for p in view.iterdir()} == names
    rows = {name: row(view / name)[1:] for name in names}
    columns = dict.fromkeys(("policy", "env", "seed"), False)
    columns |= dict.fromkeys(("policy.lr", "policy.gamma", "buffer.capacity"), True)
    for name, (found, values) in rows.items():
        assert found == columns
        assert set(values) == set(columns), name
    assert rows["lr1"][1]["policy.lr"] == "1"
    assert rows["gamma0.1"][1]["policy.lr"] == "0.01 -> 0.001"
    assert rows["lr1"][1]["policy.gamma"] == 0.99
    sizes = [rows[name][1]["buffer.capacity"] for name in ("capacity300", "lr1")]
    assert [text.strip() for text in sizes] == ["300", "60000"], "not 300.00"
    assert sizes == sorted(sizes)

    board(tmp_path / "outputs/e", seed=0, lr=1)
    assert shown.refresh()
    assert {p.name for p in view.iterdir()} - names == {"r2d2-lr1"}
    assert row(view / "lr1")[1]["policy"]


@pytest.mark.parametrize(
    ("name", "make"),
    [("events.out.tfevents.1", os.mkfifo),
     ("metrics.jsonl", lambda path: path.symlink_to("/etc/hostname"))],
)  # fmt: skip
def test_a_pipe_or_a_link_is_not_opened(tmp_path, view, name, make):
    run = board(tmp_path / "outputs/a", seed=0, lr=1e-3)
    (run / name).unlink(missing_ok=True)
    make(run / name)
    with pytest.raises(ConfigError, match=name):
        BoardView([str(tmp_path / "outputs")], view)


def test_a_job_knows_what_its_sweep_compares(tmp_path):
    jobs = []
    for num, lr in enumerate((1e-3, 1e-4)):
        typed = ["policy=r2d2", "env=cartpole", f"policy.lr={lr}", "run.total_steps=3000"]
        jobs.append({"num": num, "name": str(num), "overrides": [f"seed={num}", *typed]})
    (tmp_path / "sweep.json").write_text(json.dumps({"jobs": jobs}))
    run_dir = board(tmp_path / "1", seed=1, lr=1e-4)
    trial = trial_of(run_dir, (run_dir / "config.yaml").read_text(), "2026-01-31T12:00:03")
    assert trial.differing == {"seed", "policy.lr"}
    assert trial.name == "r2d2-cartpole-s1-lr1e-4 12:00:03"
    (tmp_path / "sweep.json").write_text("{")
    assert trial_of(run_dir, "seed: 1\n", "").name == "r2d2-cartpole-s1"


def test_settings_are_what_was_typed_with_the_values_of_the_config():
    typed = typed_settings(
        ["seed=3", "policy.lr=0.5", "memory=gru", "+env.kwargs.size=4", "~x", "logger.every=5",
         "run.dir=a", "device=cpu", "hydra.launcher.workers=2", "policy.new=true"]
    )  # fmt: skip
    settings = settings_of(CONFIG, typed)
    assert settings == {
        "policy": "dqn", "env": "pong", "seed": "3", "policy.lr": 1e-3, "memory": "gru",
        "env.kwargs.size": 4, "policy.new": True,
    }  # fmt: skip
    secret = settings_of(CONFIG | {"env": {"id": "A-v0", "key": "${oc.env:KEY}"}}, {"env.key": "x"})
    assert secret["env.key"] == "${oc.env:KEY}"
    assert trial_name(settings, settings) == "dqn-pong-s3-lr1e-3-gru-size4-new=true"


def test_names_are_short_and_fit_for_files():
    base = {"policy": "../x", "env": "a b/c", "seed": "0"}
    assert trial_name(base, ()) == ".._x-a_b_c-s0"
    assert trial_name(base | {"policy.lr": 1.0, "bonus.lr": 2.0}, ("policy.lr", "bonus.lr")) == (
        ".._x-a_b_c-s0-policy.lr1-bonus.lr2"
    )
    long = [trial_name(base | {"env.text": c * 99}, ("env.text",)) for c in "ab"]
    assert [name[-5:] for name in long] == ["aaaaa", "bbbbb"]
    many = {f"env.number_{i}": i for i in range(9)}
    assert trial_name({**base, **many}, many) == (
        ".._x-a_b_c-s0-number_00-number_11-number_22-number_33+5"
    )
    assert trial_name(base, (), ("seed",)) == "s0"
    assert trial_name(base | {"policy.lr": 0.1}, ("policy.lr",), ()) == "lr0.1"
    shown = [short_number(x) for x in (0.001, 2.5e-5, 0.5, 20000, 1e6, 0.0, 0.00012345678)]
    assert shown == ["1e-3", "2.5e-5", "0.5", "20000", "1e6", "0", "1.235e-4"]


@pytest.mark.parametrize("limit", [-math.inf, math.nan, 10**400])
def test_a_run_whose_environment_has_no_limit_is_named_and_shown(limit):
    row = {"policy": "dqn", "env": "cue", "seed": 0, "env.kwargs.limit": limit}
    name = trial_name(row, ("env.kwargs.limit",))
    assert name.startswith("dqn-cue-s0-limit")
    assert str(limit)[:5].lstrip("-") in name
    start = declare(TrialRow(name, row, frozenset(row)))[1]
    data = plugin_data_pb2.HParamsPluginData.FromString(start.metadata.plugin_data.content)
    value = data.session_start_info.hparams["env.kwargs.limit"]
    assert value.string_value == str(limit) or repr(value.number_value) == repr(limit)


def test_a_port_that_is_taken_is_an_error_and_no_address(tmp_path, capsys):
    board(tmp_path / "outputs/a", seed=0, lr=1e-3)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert main(["tensorboard", str(tmp_path / "outputs"), "--port", port]) == 7
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"--port = {port}" in err


@pytest.mark.parametrize(
    ("argv", "part"),
    [([], "DIR = outputs: "), (["a", "--port", "70000"], "[1, 65535]"), (["a"], "DIR = a: ")],
)  # fmt: skip
def test_misuse_is_one_line(argv, part, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    forge(tmp_path / "a")
    assert main(["tensorboard", *argv]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert part in err


def test_a_directory_that_was_typed_is_the_name(tmp_path, view):
    """Two of one name are told apart by the directories above."""
    for place in ("first", "a/last", "b/last"):
        path = board(tmp_path / place, seed=0, lr=1e-3)
        (path / "overrides.yaml").write_text(f"- policy=r2d2\n- seed=0\n- run.dir=x/{place}\n")
    board(tmp_path / "2026-01-01/12-00-00_r2d2", seed=0, lr=1e-4)
    BoardView([str(tmp_path)], view)
    names = {path.name for path in view.iterdir()}
    assert {"first", "a-last", "b-last"} < names
    assert len(names) == 4
    assert row(view / "first")[0] == "first"
