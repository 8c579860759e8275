"""Rows and commands: figures are what they are called, nothing is silently left out."""

import json
from argparse import Namespace

import pytest
import yaml

from tests.benchmarks import rows, runs, whole
from tests.benchmarks.rows import Timing, make_row, timing_row


def test_ratios_are_medians_of_pairs():
    ours, other = ([Timing(w, 1.0) for w in walls] for walls in ((2.0, 3.0, 4.0), (1.0, 1.0, 8.0)))
    cost = timing_row("x", {}, "floor", ours, other, kind="cost", target=1.25)
    assert (cost.ratio, cost.spread, cost.met, cost.ours) == (2.0, [0.5, 3.0], False, 3000.0)
    speedup = timing_row("x", {}, "peer", ours, other, kind="speedup", target=0.4)
    assert (speedup.ratio, speedup.met) == (0.5, True)
    rate = make_row("x", {}, "peer", "steps/s", [10.0], [5.0], kind="speedup", higher=True)
    assert rate.ratio == 2.0
    fact = make_row("x", {}, "peer", "share", [1.0], [0.0], kind="fact")
    assert fact.ratio is None, "nothing is divided"


def _row(against, other=2.0, **fields):
    others = [] if fields.get("missing") else [other]
    return make_row("run", {"n": 1}, against, "ms", [1.0], others, kind="speedup", **fields)


def test_a_missing_peer_misses_its_target_and_is_left_out_of_quick_tables(tmp_path):
    given = [_row("a 1.0", target=1.5), _row("b", missing="not installed", target=4.0)]
    assert [row.met for row in given] == [True, False]
    rows.write_rows(given, tmp_path / "rows")
    back = rows.read_rows(tmp_path / "rows")
    assert back == given
    line = rows.markdown(back).splitlines()[2]
    assert line == "| run (n 1), µs | 1 000 | 2 000 | not installed |  | ≥ 4, not installed |"
    kept, left_out = rows.quick_rows(given)
    assert [(row.against, row.target) for row in kept] == [("a 1.0", None)]
    assert [line.split()[2] for line in left_out] == ["b"]


# -- whole runs ------------------------------------------------------------------------------------


def _write(run_dir, timings, scores, wall):
    record = {"wall_seconds": wall, "threads": 1, "parameters": 7, "env_steps": 4000,
              "updates": 9, "digest": "d"}  # fmt: skip
    (run_dir / "run.json").write_text(json.dumps(record))
    keys = ("time/wall_seconds", "time/eval_seconds")
    spent = {"time/collect_seconds": 1.0, "time/update_seconds": 2.0}
    lines = [{"env_steps": n, **spent, **dict(zip(keys, t, strict=False))} for n, *t in timings]
    (run_dir / "timings.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    lines = [{"env_steps": n, "train/loss": 1.0} for n in (1000, 2000)]
    lines += [{"env_steps": n, "eval/return_mean": r} for n, r in scores]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


def test_results_of_a_run_by_hand(tmp_path):
    """Evaluations of 2 s after 2000 env steps and of 3 s at the end; 1 s per 1000 env steps."""
    timings = [(1000, 1.0), (2000, 2.0), (3000, 5.0, 2.0), (4000, 6.0, 2.0)]
    _write(tmp_path, timings, [(2000, 50.0), (4000, 80.0)], wall=9.0)
    found = runs.results(tmp_path)
    assert found["curve"] == [(2000, 50.0, 4.0, 2.0), (4000, 80.0, 9.0, 5.0)]
    assert (found["wall"], found["eval_seconds"]) == (9.0, 5.0)
    assert whole.rate(found) == 1000
    _write(tmp_path, timings[:1], [], wall=2.0)
    assert runs.results(tmp_path)["eval_seconds"] == 0.0


def _answer(**changes):
    given = {"parameters": 7, "env_steps": 10240, "updates": 100, "threads": 1, "wall": 15.0}
    return given | {"process": 17.0, "eval_seconds": 5.0, "process_cpu": 8.0} | changes


def test_a_peer_that_did_other_work_is_refused():
    def compare(updates, apart):
        return whole.compare("x", [_answer()], [_answer(updates=updates)], 1, apart, "")

    with pytest.raises(AssertionError, match="updates 99, ours 100"):
        compare(99, 0.0)
    assert compare(96, 0.05)
    with pytest.raises(AssertionError, match="updates 94, ours 100"):
        compare(94, 0.05)


def test_overlapped_runs_must_give_one_digest(monkeypatch):
    digests = iter("aaaaaaab")
    answer = {"wall": 3.0, "collect": 1.0, "update": 1.0}
    monkeypatch.setattr(whole, "own_run", lambda *_, **__: answer | {"digest": next(digests)})
    o = Namespace(quick=False, env_steps=10, runs=2)
    (row,) = whole.overlap(o)
    assert (row.ratio, row.setting["collect_share"]) == (1.0, "50%")
    with pytest.raises(AssertionError, match="not deterministic"):
        whole.overlap(o)


def test_peers_have_the_settings_of_the_presets():
    from tests.benchmarks.peers.common import COLLECT, DQN, PPO

    folder = runs.CHECKOUT / "conf/experiment"
    dqn, ppo = (yaml.safe_load((folder / f"zoo_{n}_cartpole.yaml").read_text())
                for n in ("dqn", "ppo"))  # fmt: skip
    learner, policy = dqn["learner"], dqn["policy"]
    clip, batch = policy["max_grad_norm"], learner["batch_size"]
    assert (float(policy["lr"]), policy["gamma"], clip, batch) == (
        DQN.LR, DQN.GAMMA, DQN.CLIP, DQN.BATCH)  # fmt: skip
    assert (dqn["buffer"]["capacity"], learner["learning_starts"], dqn["torso"]["hidden"]) == (
        DQN.CAPACITY, DQN.START + 1, DQN.HIDDEN)  # fmt: skip
    assert dqn["explore"]["epsilon"]["points"][-1] == [DQN.EPS_OVER, DQN.EPS_END]
    assert learner["update_per_collect"] == policy["target_update_every"] == DQN.UPDATES
    policy, size = ppo["policy"], ppo["learner"]["batch_size"]
    assert (float(policy["lr"]["start"]), policy["clip_range"]["start"], policy["gamma"], size) == (
        PPO.LR, PPO.CLIP, PPO.GAMMA, PPO.BATCH)  # fmt: skip
    assert (policy["gae_lambda"], policy["epochs"], policy["value_coef"] / 2) == (
        PPO.LAMBDA, PPO.EPOCHS, PPO.VALUE)  # fmt: skip
    assert (policy["entropy_coef"], policy["max_grad_norm"], float(policy["adam_eps"])) == (
        PPO.ENTROPY, PPO.NORM, PPO.EPS)  # fmt: skip
    assert ppo["collector"]["num_envs"] == PPO.ENVS
    for preset in (dqn, ppo):
        assert preset["collector"]["n_sample"] == PPO.ENVS * PPO.STEPS == COLLECT


@pytest.mark.parametrize("name", ["pqn", "pqn_gru"])
def test_compiled_jax_has_the_settings_of_the_runs_beside_it(name):
    from rlrun.config import Composer, read_composed
    from tests.benchmarks.jax import overrides
    from tests.benchmarks.peers.common import PQN, RecurrentPQN

    config = read_composed(Composer().compose([*overrides(name, 1000), "run.total_steps=1000"]))
    policy, collector, epsilon = config.policy, config.collector, config.explore.epsilon
    peer = {"pqn": PQN, "pqn_gru": RecurrentPQN}[name]
    assert (collector.num_envs, collector.n_sample) == (peer.ENVS, peer.ENVS * peer.STEPS)
    assert collector.n_sample == peer.MINIBATCHES * config.learner.batch_size
    assert (policy.epochs, policy.gamma) == (peer.EPOCHS, peer.GAMMA)
    assert (policy.lr.end, policy.max_grad_norm) == (0.0, peer.CLIP)
    assert (epsilon.end, epsilon.over) == (peer.EPS_END, 1000 * peer.EPS_SHARE)
    if name == "pqn":
        assert policy.lr.start / 2 == peer.LR
        return
    assert (policy.lr.start, policy.q_lambda, policy.reward_scale) == (
        peer.LR, peer.LAMBDA, peer.REWARD_SCALE)  # fmt: skip
    assert (config.memory.name, config.memory.hidden) == ("gru", peer.HIDDEN)
    assert (config.torso.hidden, config.torso.layer_norm) == ((peer.HIDDEN,), True)
    assert policy.segment_len == peer.STEPS
