"""Rows and commands of the benchmarks: nothing that was asked for is silently left out."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from tests.benchmarks import __main__ as command
from tests.benchmarks import collect, diengine, endtoend, overlap, process, solve, startup
from tests.benchmarks.floor import Shape
from tests.benchmarks.process import interpreter
from tests.benchmarks.timing import Timing, interleaved, make_row, table, timing_row, write_rows

TINY = Shape("tiny", 4, (8,), 8, (), 4, 2, 8, 3)


def test_cost_and_speedup_are_medians_of_pairs():
    pairs = [(Timing(2.0, 1.0), Timing(1.0, 1.0)), (Timing(3.0, 1.0), Timing(1.0, 1.0))]
    pairs += [(Timing(4.0, 1.0), Timing(8.0, 1.0))]
    cost = timing_row("x", {}, "floor", pairs, kind="cost", target=1.25)
    assert (cost.ratio, cost.spread, cost.met) == (2.0, [0.5, 3.0], False)
    speedup = timing_row("x", {}, "peer", pairs, kind="speedup", target=0.4)
    assert (speedup.ratio, speedup.met) == (0.5, True)
    rate = make_row("x", {}, "peer", "steps/s", [10.0], [5.0], kind="speedup", higher=True)
    assert rate.ratio == 2.0


def test_the_order_of_the_two_sides_alternates():
    order = []

    def side(name):
        return lambda: order.append(name) or Timing(1.0, 1.0)

    interleaved(side("ours"), side("other"), 3)
    assert order == ["ours", "other", "other", "ours", "ours", "other"]


def test_a_missing_peer_is_a_row_with_the_reason(tmp_path):
    assert interpreter(tmp_path, "ding") is None
    row = diengine._update_row(None, TINY, "pytorch", 1, 2, 0.01)
    assert row.missing == "not installed"
    assert row.ratio is None
    assert "not installed" in table([row])
    row.target = 4.0
    assert row.met is False
    assert "not measured" in table([row])
    write_rows([row], tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text())["missing"] == "not installed"


def test_a_failing_peer_is_a_row_with_the_reason(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    python.chmod(0o755)
    row = diengine._update_row(python, TINY, "pytorch", 1, 2, 0.01)
    assert row.missing == "failed (exit 3): no such module"


def test_an_unknown_benchmark_is_refused(capsys):
    with pytest.raises(SystemExit) as e:
        command.main(["updates"])
    assert e.value.code == 2
    assert "unknown benchmark updates" in capsys.readouterr().err


def _answer(**changes):
    curve = [[2048, 480.0, 3.0, 1.0], [4096, 100.0, 6.0, 2.0], [6144, 475.0, 9.0, 3.0]]
    curve += [[8192, 500.0, 12.0, 4.0], [10240, 9.0, 15.0, 5.0]]
    base = {
        "parameters": 7,
        "env_steps": 10240,
        "updates": 9,
        "threads": 1,
        "wall": 15.0,
        "process": 17.0,
    }
    return base | {"eval_seconds": 5.0, "curve": curve, "process_cpu": 8.0} | changes


def test_solved_is_two_good_evaluations_in_a_row():
    curve = _answer()["curve"]
    assert endtoend.solved(curve) == endtoend.Solved(8192, 8.0, 12.0)
    assert endtoend.solved(curve[:3]).env_steps == math.inf
    assert endtoend.solved([]) == endtoend.Solved()


def _fake_peer(tmp_path, venv, line):
    python = tmp_path / venv / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{line}\n")
    python.chmod(0o755)


def test_end_to_end_rows_of_a_peer_that_answers_fails_or_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(endtoend, "own_run", lambda *_, **__: _answer())
    slower = _answer(wall=45.0, curve=_answer()["curve"][:3])
    _fake_peer(tmp_path, "sb3", f"echo a line of its own; echo '{json.dumps(slower)}'")
    _fake_peer(tmp_path, "tianshou", "echo no such module >&2; exit 3")
    absent = endtoend.PeerRun("absent", "nowhere", "dqn_sb3.py", 1.2)
    contest = replace(endtoend.DQN, peers=(*endtoend.PEERS[:2], absent))
    rows = endtoend.measure(tmp_path, env_steps=10_000, runs=2, contest=contest)
    assert len(rows) == 8 * 3
    first = {r.against: r for r in rows if r.name == "dqn run"}
    assert first["stable-baselines3"].ratio == 4.0
    assert first["stable-baselines3"].met is True
    assert first["tianshou"].missing == "failed (exit 3): no such module"
    assert first["absent"].missing == "not installed"
    assert first["tianshou"].met is first["absent"].met is False
    whole = next(r for r in rows if r.name == "dqn run, process")
    assert whole.ours == 17.0
    assert whole.ratio == pytest.approx(whole.other / 17.0, rel=0.5)
    assert 0 <= whole.cpu_ratio < 1
    after = next(r for r in rows if r.name == "dqn solved after")
    assert (after.ours, after.other, after.ratio, after.met) == (8192, math.inf, None, None)
    assert "inf stable-baselines3" in table(rows)


def _beside_sb3(contest):
    return replace(contest, peers=contest.peers[:1])


def test_seconds_of_a_process_are_those_of_its_clocks():
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    _, found = process.measured([sys.executable, "-c", busy], 1, cwd=process.CHECKOUT)
    assert found["process_cpu"] >= 0.3
    assert found["process"] >= 0.3
    line = [sys.executable, "-c", "import time; time.sleep(0.5); print(1)"]
    printed, found = process.measured(line, 1, cwd=process.CHECKOUT)
    assert printed == "1\n"
    assert found["process_cpu"] < found["process"]
    with pytest.raises(process.PeerFailed, match="it printed no answer"):
        process.run(line, 1, cwd=process.CHECKOUT)


def test_start_up_is_not_timed_of_a_command_that_failed():
    with pytest.raises(AssertionError, match="exit 2, not 0"):
        startup.ended("policy=dqn", "policy.gama=1", code=0)


def test_a_peer_that_did_other_work_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(endtoend, "own_run", lambda *_, **__: _answer())
    _fake_peer(tmp_path, "sb3", f"echo '{json.dumps(_answer(updates=10))}'")
    with pytest.raises(AssertionError, match="stable-baselines3: updates 10, ours 9"):
        endtoend.measure(tmp_path, env_steps=10_000, runs=1, contest=_beside_sb3(endtoend.DQN))


def test_every_peer_has_its_script_and_the_settings_of_the_preset():
    for peer in endtoend.PEERS:
        assert (process.SCRIPTS / peer.script).exists()
    sys.path.insert(0, str(process.SCRIPTS))
    try:
        import dqn_common as peers
    finally:
        sys.path.pop(0)
    preset = yaml.safe_load(
        (process.CHECKOUT / f"conf/experiment/{endtoend.DQN.preset}.yaml").read_text()
    )
    learner, policy = preset["learner"], preset["policy"]
    found = (float(policy["lr"]), policy["gamma"], policy["grad_clip"], learner["batch_size"])
    assert found == (peers.LR, peers.GAMMA, peers.CLIP, peers.BATCH)
    found = (preset["buffer"]["capacity"], learner["learning_starts"], preset["torso"]["hidden"])
    assert found == (peers.CAPACITY, peers.START + 1, peers.HIDDEN)
    assert preset["collector"]["n_sample"] == peers.COLLECT
    assert learner["update_per_collect"] == policy["target_update_every"] == peers.UPDATES
    for env_steps, value in preset["explore"]["epsilon"]["points"]:
        assert peers.epsilon(env_steps) == pytest.approx(
            value, abs=0.13 if env_steps == 1000 else 1e-6
        )


def test_ppo_peers_have_the_settings_of_the_preset():
    for peer in endtoend.PPO.peers:
        assert (process.SCRIPTS / peer.script).exists()
    sys.path.insert(0, str(process.SCRIPTS))
    try:
        import ppo_common as peers
    finally:
        sys.path.pop(0)
    preset = yaml.safe_load(
        (process.CHECKOUT / f"conf/experiment/{endtoend.PPO.preset}.yaml").read_text()
    )
    policy, collector = preset["policy"], preset["collector"]
    found = (float(policy["lr"]["start"]), policy["clip"]["start"], policy["gamma"])
    assert found == (peers.LR, peers.CLIP, peers.GAMMA)
    found = (policy["gae_lambda"], policy["epochs"], preset["learner"]["batch_size"])
    assert found == (peers.LAMBDA, peers.EPOCHS, peers.BATCH)
    found = (policy["value_coef"] / 2, policy["entropy_coef"], policy["grad_clip"])
    assert found == (peers.VALUE, peers.ENTROPY, peers.NORM)
    assert float(policy["adam_eps"]) == peers.EPS
    assert collector["num_envs"] == peers.ENVS
    assert collector["n_sample"] == peers.ENVS * peers.STEPS


def test_own_steps_may_differ_by_the_configured_share(tmp_path, monkeypatch):
    monkeypatch.setattr(endtoend, "own_run", lambda *_, **__: _answer(updates=100))
    _fake_peer(tmp_path, "sb3", f"echo '{json.dumps(_answer(updates=96))}'")
    rows = endtoend.measure(tmp_path, env_steps=10_000, runs=1, contest=_beside_sb3(endtoend.PPO))
    assert {r.name.partition(" ")[0] for r in rows} == {"ppo"}
    _fake_peer(tmp_path / "far", "sb3", f"echo '{json.dumps(_answer(updates=94))}'")
    with pytest.raises(AssertionError, match="updates 94, ours 100"):
        endtoend.measure(
            tmp_path / "far", env_steps=10_000, runs=1, contest=_beside_sb3(endtoend.PPO)
        )


def test_collecting_without_peers_is_rows_that_say_so():
    rows = collect.measure(None, repeats=2, seconds=0.01, envs=(2,))
    assert [(r.name, r.against) for r in rows] == [
        ("act", "bare loop"), ("collect", "bare loop"), ("collect", "di-engine"),
        ("collect", "tianshou"), ("collect", "torchrl"),
    ]  # fmt: skip
    assert [r.missing for r in rows] == ["", "", *["not installed"] * 3]
    assert rows[1].ratio > 0
    assert rows[2].met is False, "a missing peer is a missed target"


def test_the_bare_loop_infers_what_rlrun_acts_by():
    """Same weights, same observations: the same values, so the same work is compared."""
    own, bare = collect.make(4), collect.BareLoop(4)
    net = own.policy.net
    with torch.no_grad():
        for name, module in (("encoder", net.torso.layers), ("advantage", net.advantage),
                             ("value", net.value)):  # fmt: skip
            getattr(bare.net, name).load_state_dict(module.state_dict())
        core = net.memory.core.state_dict()
        bare.cell.load_state_dict({n.removesuffix("_l0"): w for n, w in core.items()})
    bare.previous[:, 0] = 1  # one-hot of action 0
    bare.obs = own.obs.copy()
    step, state = own.actor.step, own.actor.initial_state()
    own.actor.refresh()
    first, zero = np.zeros(4, bool), np.zeros(4, np.float32)
    for _ in range(3):
        q, state = step(bare.obs, first, np.zeros(4, np.int64), zero, state)
        np.testing.assert_array_equal(bare.infer(), q.argmax(-1))
        np.testing.assert_allclose(bare.state[0].numpy(), state[0], rtol=1e-4, atol=1e-6)


def test_times_to_a_score_are_compared_by_their_medians():
    def runs(*walls):
        return [{"wall": w, "env_steps": 1000 * w, "solved": True} for w in walls]

    seconds, steps = solve._rows("own", runs(3, 1, 2), runs(40, 10, 20), 4.0, "", 1)
    assert (seconds.ours, seconds.other, seconds.ratio, seconds.met) == (2, 20, 10, True)
    assert (steps.kind, steps.ours, steps.other) == ("fact", 2000, 20000)
    assert seconds.setting["reached"] == 3
    alone, _ = solve._rows("own", runs(3), [], 4.0, "not installed", 1)
    assert (alone.met, alone.missing) == (False, "not installed")


def test_overlapped_runs_must_give_one_digest(monkeypatch):
    def fake(digest):
        return lambda name, steps: {
            "wall": {"serial": 3.0, "overlapped": 2.0}[name], "digest": digest(),
            "collect": 1.0, "update": 1.0,
        }  # fmt: skip

    monkeypatch.setattr(overlap, "_run", fake(lambda: "same"))
    row, ceiling = overlap.measure(repeats=2, env_steps=10)
    assert (ceiling.ours, ceiling.ratio) == (1.5, 2.0)
    assert (row.ratio, row.met, row.setting["collect_share"]) == (1.5, True, "50%")
    digests = iter("abcdefgh")
    monkeypatch.setattr(overlap, "_run", fake(lambda: next(digests)))
    with pytest.raises(AssertionError, match="not deterministic"):
        overlap.measure(repeats=2, env_steps=10)


def test_rows_of_a_file_become_a_table(tmp_path, capsys):
    row = make_row("collect", {"envs": 8}, "tianshou", "env steps/s", [10.0], [5.0],
                   kind="speedup", higher=True, target=3.0)  # fmt: skip
    write_rows([row], tmp_path / "rows.jsonl")
    assert command.main(["--table", str(tmp_path / "rows.jsonl")]) == 0
    line = capsys.readouterr().out.splitlines()[2]
    assert (
        line
        == "| collect (8 envs), env steps/s | 10 | 5 (tianshou) | 2.00 (2.00-2.00) | ≥ 3, missed |"
    )
