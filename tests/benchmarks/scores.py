"""``python -m tests.benchmarks.scores [options]``: scores, one process per run.

Every run is the command a user would type (with one thread when others run beside it); its wall
time includes start-up. Scores are those of ``rlrun eval`` on the final weights, on seeds that
training never used. With ``--out`` a table that was interrupted goes on where it stopped, and runs
that failed are tried again; ``--table FILE`` writes what such a file holds into TABLES.md.
``--quick`` shows that it works, on one short run. Exit code 1 when a run failed.

Thresholds were fixed before any run. IQM: mean of the middle half of the seeds' scores.
"""

import argparse
import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.benchmarks.process import CHECKOUT
from tests.benchmarks.score_row import Row, missing, run_seed
from tests.benchmarks.score_table import done, insert, markdown, read

TMAZE = {"metric": "success", "episodes": 1000}
SHORT = "policy.burnin_step=4 policy.learn_unroll_len=12"
TMAZE30 = "experiment=r2d2_tmaze50 env.length=30"
MINGRU = (
    "memory=mingru memory.readout=false memory.forget_bias=0 policy.head_hidden=[64] "
    "policy.lr.start=3e-3"
)
NOISY = (
    "explore=none policy.noisy=1 policy.noisy_resample=chunk torso.hidden=[] "
    "policy.head_hidden=[64,64]"
)
PQN = "policy=pqn env.reward_scale=0.1 run.stop_value=null run.eval_every=50000"
CHEETAH = {"steps": 100_000, "needs": "mujoco"}
SAC_DATA = (
    "rlrun policy=sac env=pendulum seed={seed} run.dir={work}/behaviour -q learner.threads=1",
    "rlrun export {work}/behaviour {work}/data",
)
DQN_DATA = (  # its replay holds the whole run, from random to trained
    "rlrun experiment=zoo_dqn_cartpole seed={seed} run.dir={work}/behaviour -q learner.threads=1",
    "rlrun export {work}/behaviour {work}/data",
)
TRAINED = "--last 5000"  # what a run wrote when it could already do it
QUICK = "cartpole_ppo"  # the row of --quick
QUICK_STEPS = 2_000  # env steps of its run
ROWS = {
    # value-based
    "cartpole_dqn": Row("policy=dqn env=cartpole", ">= 475", steps=50_000),
    "cartpole_qrdqn": Row("policy=qrdqn env=cartpole", ">= 475", steps=50_000),
    "cartpole_c51": Row("policy=c51 env=cartpole", ">= 475", steps=100_000),
    "cartpole_iqn": Row("policy=iqn env=cartpole", ">= 475", steps=50_000),
    "cartpole_rainbow": Row("policy=rainbow env=cartpole", ">= 475", steps=100_000),
    "acrobot_dqn": Row("policy=dqn env=acrobot", ">= -90", steps=100_000),
    "acrobot_qrdqn": Row("policy=qrdqn env=acrobot", ">= -90", steps=100_000),
    # on-policy
    "cartpole_ppo": Row("policy=ppo env=cartpole", ">= 475", steps=100_000),
    "lunarlander_ppo": Row(
        "policy=ppo env=lunarlander", ">= 200", steps=1_000_000, needs="box2d"
    ),
    "cartpole_a2c": Row("policy=a2c env=cartpole", ">= 450", steps=500_000),
    "novel_ppo": Row("policy=ppo memory=lstm env=cartpole_novel", ">= 450", steps=200_000),
    "cartpole_pqn": Row(f"{PQN} env=cartpole", ">= 495.1", steps=500_000),  # CleanRL's pqn.py
    "acrobot_pqn": Row(f"{PQN} env=acrobot", ">= -95.6", steps=500_000),  # the same
    "novel_pqn": Row(
        "policy=pqn memory=mingru memory.hidden=64 memory.readout=false env=cartpole_novel "
        "env.reward_scale=0.1 policy.prev_inputs=true "
        "policy.q_lambda=0.95 learner.batch_size=128", ">= 450", steps=500_000,
    ),
    "memory_chain_pqn": Row("experiment=pqn_memory_chain", ">= 0.9"),
    "cartpole_impala": Row("policy=impala env=cartpole", ">= 450", steps=500_000),
    # continuous
    "pendulum_sac": Row("policy=sac env=pendulum", ">= -200", steps=20_000),
    "pendulum_td3": Row("policy=td3 env=pendulum", ">= -200", steps=20_000),
    "pendulum_ddpg": Row("policy=ddpg env=pendulum", ">= -200", steps=20_000),
    "lunarlander_sac": Row(
        "policy=sac env=lunarlander_continuous", ">= 220", steps=300_000, needs="box2d"
    ),
    "halfcheetah_sac": Row(
        "policy=sac env=halfcheetah run.stop_value=null", ">= 0.9 x halfcheetah_sac_sb3", **CHEETAH
    ),
    "halfcheetah_sac_sb3": Row(
        "control_sb3.py sac HalfCheetah-v5 {seed} 1 100000 50", "the peer", peer="sb3"
    ),
    "halfcheetah_td3": Row(
        "policy=td3 env=halfcheetah run.stop_value=null", ">= 0.9 x halfcheetah_td3_sb3", **CHEETAH
    ),
    "halfcheetah_td3_sb3": Row(
        "control_sb3.py td3 HalfCheetah-v5 {seed} 1 100000 50", "the peer", peer="sb3"
    ),
    # several agents
    "twostep_qmix": Row("policy=qmix env=twostep", ">= 8"),
    "twostep_vdn": Row("policy=vdn env=twostep", "== 7"),
    "twostep_dqn": Row("policy=dqn env=twostep explore=anneal", "<= 7"),
    "twostep_dqn_separate": Row("policy=dqn env=twostep explore=anneal agents=separate", "<= 7"),
    # R2D2 and its memories
    "cartpole": Row("policy=r2d2 env=cartpole", ">= 475, 60 s, 60k steps"),
    "cartpole_uniform": Row("policy=r2d2 env=cartpole buffer=uniform", "for comparison"),
    "novel": Row("policy=r2d2 env=cartpole_novel", ">= 450, 150 s, 150k steps"),
    "novel_dqn": Row("policy=dqn env=cartpole_novel policy.prev_inputs=true", "<= 180"),
    "repeat": Row("experiment=r2d2_repeat_previous", ">= 0.9, 120 s, 200k steps"),
    "repeat_gru": Row("experiment=r2d2_repeat_previous memory=gru", ">= 0.9"),
    "repeat_mingru": Row(f"experiment=r2d2_repeat_previous {MINGRU}", ">= 0.9"),
    "repeat_dqn": Row("policy=dqn env=repeat_previous policy.prev_inputs=true", "about -0.49"),
    "tmaze10": Row("policy=r2d2 env=tmaze env.length=10", ">= 0.95", **TMAZE),
    "tmaze10_dqn": Row(
        "policy=dqn env=tmaze env.length=10 policy.prev_inputs=true", "<= 0.55", **TMAZE
    ),
    "tmaze30": Row(TMAZE30, ">= 0.95", **TMAZE),
    "tmaze30_gru": Row(f"{TMAZE30} memory=gru", ">= 0.95", **TMAZE),
    "tmaze30_mingru": Row(
        f"{TMAZE30} memory=mingru memory.hidden=64 memory.readout=false", ">= 0.95", **TMAZE
    ),
    "tmaze50": Row("experiment=r2d2_tmaze50", ">= 0.95", **TMAZE),
    "tmaze20_stored": Row(f"policy=r2d2 env=tmaze env.length=20 {SHORT}", "reported", **TMAZE),
    "tmaze20_zero": Row(
        f"policy=r2d2 env=tmaze env.length=20 {SHORT} policy.state_init=zero", "reported", **TMAZE
    ),
    # goals, exploration
    "bitflip_her": Row("experiment=bitflip_her", ">= 0.9", "success", 100),
    "bitflip_plain": Row(
        "experiment=bitflip_her buffer.relabel=null", "<= 0.05", "success", 100
    ),
    "chain_noisy": Row(f"experiment=dqn_chain {NOISY}", ">= 10"),
    "chain_rnd": Row("experiment=dqn_chain bonus=rnd", ">= 10"),
    "chain_epsilon": Row("experiment=dqn_chain", "<= 1"),
    # offline
    "pendulum_bc": Row(
        "policy=bc env=pendulum buffer.load={work}/data", ">= behaviour - 20",
        steps=10_000, prepare=(SAC_DATA[0], f"{SAC_DATA[1]} {TRAINED}"),
    ),
    "pendulum_cql": Row(
        "policy=cql_sac env=pendulum torso.hidden=[64,64] learner.batch_size=128 "
        "policy.lr=1e-3 policy.actor_lr=1e-3 "
        "buffer.load={work}/data", ">= behaviour - 20", steps=10_000, prepare=SAC_DATA,
    ),
    "cartpole_cql": Row(
        "policy=cql env=cartpole buffer.load={work}/data", ">= 450",
        steps=10_000, prepare=DQN_DATA,
    ),
    "cartpole_iql": Row(
        "policy=iql env=cartpole buffer.load={work}/data", ">= 450",
        steps=10_000, prepare=DQN_DATA,
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code."""
    o = _parser().parse_args(argv)
    if o.table is not None:
        page = CHECKOUT / "tests/benchmarks/TABLES.md"
        table = markdown(ROWS, read(o.table))
        page.write_text(insert(page.read_text("utf-8"), table), "utf-8")
        return 0
    if o.quick:
        rows = {n: shortened(ROWS[n]) for n in o.rows or [QUICK]}
    else:
        rows = {name: ROWS[name] for name in o.rows or ROWS}
    results = read(o.out)
    tasks = [(name, seed) for name in rows for seed in _todo(rows[name], name, o, results)]
    with _folder() as work, _appending(o.out, results) as say:
        for name, row in rows.items():
            if why := missing(row, o.peers):
                say({"row": name, "command": row.command, "status": "skipped", "why": why})

        def one(task: tuple[str, int]) -> None:
            name, seed = task
            folder = work / f"{name}_s{seed}"
            say({"row": name, **run_seed(rows[name], seed, folder, o.peers, alone=o.jobs == 1)})
            shutil.rmtree(folder, ignore_errors=True)

        with ThreadPoolExecutor(o.jobs) as pool:
            list(pool.map(one, tasks))
    print(markdown(rows, results), end="")
    return 1 if any(r["status"] == "failed" for r in results[-len(tasks) :]) and tasks else 0


def shortened(row: Row) -> Row:
    """The row as --quick runs it: one seed, a score that demands nothing."""
    return replace(row, threshold="quick", steps=QUICK_STEPS, episodes=2, seeds=1)


def _todo(row: Row, name: str, o: argparse.Namespace, results: list[dict[str, Any]]) -> list[int]:
    """The seeds that have no result yet; none of a row that cannot be run here."""
    if missing(row, o.peers):
        return []
    seeds = range(o.first_seed, o.first_seed + (o.seeds or row.seeds))
    return [s for s in seeds if s not in done(results, name, row)]


@contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rlrun_scores_"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _appending(path: Path | None, results: list[dict[str, Any]]) -> Iterator[Any]:
    """Calling it adds a result to the list, the file (written through) and the terminal."""
    lock = threading.Lock()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.read_bytes().endswith(b"\n"):  # an interrupted line
            whole = path.read_bytes().rpartition(b"\n")
            path.write_bytes(whole[0] + whole[1])

    def say(result: dict[str, Any]) -> None:
        with lock:
            results.append(result)
            if path is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
            shown = {k: result[k] for k in ("seed", "status", "score", "why") if k in result}
            print(f"{result['row']}: {' '.join(f'{k} {v}' for k, v in shown.items())}",
                  file=sys.stderr, flush=True)  # fmt: skip

    yield say


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.scores",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, metavar="NAME", help="default: all")
    parser.add_argument("--seeds", type=int, help="per row; default: 5 (quick: 1)")
    parser.add_argument("--quick", action="store_true", help="a short run of one row or of --rows")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs side by side; 1: it has all cores"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines, one per run; goes on")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="folder of peers' environments")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table of TABLES.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
