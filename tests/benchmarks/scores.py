"""Scores of trained policies, five seeds a row, one process per run.

Every run is the command a user would type (with one thread when others run beside it); its wall
time includes start-up. Scores are those of ``rlrun eval`` on the final weights, on seeds that
training never used. With ``--out`` a table that was interrupted goes on where it stopped, and runs
that failed are tried again; ``--table FILE`` writes what such a file holds into TABLES.md.

Thresholds were fixed before any run, that of ``minigrid`` after two of its seeds. IQM: the
interquartile mean of the seeds' scores, with its stratified bootstrap (Agarwal et al. 2021).
"""

import json
import re
import shlex
import shutil
import sys
import tempfile
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks import runs
from tests.benchmarks.product import RENAMED, aggregate_iqm
from tests.benchmarks.rows import PeerFailed, table

BEGIN, END = "<!-- scores:begin -->\n", "<!-- scores:end -->\n"
RESAMPLES = 10_000
EXTRAS = {  # extra of pyproject.toml -> a module that comes with it
    "atari": "ale_py", "box2d": "Box2D", "mujoco": "mujoco", "minigrid": "minigrid",
    "popgym": "popgym", "pettingzoo": "pettingzoo", "envpool": "envpool",
}  # fmt: skip
Result = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """``overrides`` are what one would type behind ``rlrun``; ``{work}`` is the seed's own folder.

    ``threshold`` begins with ">= 475", ">= 0.9 x ROW" or ">= behaviour - 20" (also <=, ==), or is
    a remark that demands nothing. ``prepare``: commands that come before; what they train in
    ``{work}/behaviour`` is scored as the behaviour. ``peer``: ``overrides`` are a script of
    tests/benchmarks/peers and its arguments, run in that environment of --peers.
    """

    overrides: str
    threshold: str
    metric: str = "return_mean"
    episodes: int = 50
    seeds: int = 5
    steps: int | None = None  # run.total_steps; None: the preset's
    needs: str = ""  # extra of pyproject.toml
    prepare: tuple[str, ...] = ()
    peer: str = ""

    @property
    def command(self) -> str:
        """The key of the row's results; a result of another command is not used."""
        if self.peer:
            return f"{self.peer}: {self.overrides}"
        total = [] if self.steps is None else [f"run.total_steps={self.steps}"]
        return " ".join(["rlrun", self.overrides, *total])


@dataclass(frozen=True)
class Bound:
    """Target of a score: ``value``, or factor * other + offset of the score of ``other``."""

    sign: str  # >=, <= or ==
    value: float | None = None
    other: str = ""
    factor: float = 1.0
    offset: float = 0.0

    def met(self, score: float, score_of: Callable[[str], float | None]) -> bool | None:
        """Return whether ``score`` keeps it; None when the other's score is not known."""
        limit = self.value
        if limit is None:
            theirs = score_of(self.other)
            if theirs is None:
                return None
            limit = self.factor * theirs + self.offset
        kept = {">=": score >= limit, "<=": score <= limit, "==": abs(score - limit) < 1e-6}
        return kept[self.sign]


def bound_of(threshold: str) -> Bound | None:
    """The bound a threshold begins with; None: a remark."""
    number = r"(-?[\d.]+)"
    if found := re.match(rf"(>=|<=|==) {number} x (\w+)", threshold):
        return Bound(found[1], other=found[3], factor=float(found[2]))
    if found := re.match(rf"(>=|<=|==) {number}", threshold):
        return Bound(found[1], value=float(found[2].rstrip(".")))
    if found := re.match(r"(>=|<=|==) (\w+)(?: ([+-]) ([\d.]+))?", threshold):
        offset = float(found[4] or 0) * (-1 if found[3] == "-" else 1)
        return Bound(found[1], other=found[2], offset=offset)
    return None


def missing(row: Row, peers: Path | None) -> str:
    """Why the row cannot be run here and what to do; "" when it can."""
    if row.needs and find_spec(EXTRAS[row.needs]) is None:
        return f"needs {EXTRAS[row.needs]}: pip install '.[{row.needs}]'"
    if row.peer and runs.interpreter(peers, row.peer) is None:
        what = {"sb3": "stable-baselines3"}.get(row.peer, row.peer)
        return f"needs --peers DIR with an environment {row.peer} (pip install {what})"
    return ""


TMAZE = {"metric": "success", "episodes": 1000}
TMAZE30 = "experiment=r2d2_tmaze50 env.length=30"
MINGRU = (
    "memory=mingru memory.readout=false memory.forget_bias=0 policy.head_hidden=[64] "
    "policy.lr.start=3e-3"
)
NOISY = (
    "explore=none policy.noisy=1 policy.noisy_resample=chunk torso.hidden=[] "
    "policy.head_hidden=[64,64]"
)
PQN = "policy=pqn run.stop_return=null run.eval_every=50000"
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
ACROBOT = (
    "run.stop_return=null run.eval_every=20000 policy.lr.end=0 policy.gamma=0.99 "
    "policy.lr.start=2.5e-3"
)
ROWS = {
    # value-based
    "cartpole_dqn": Row("policy=dqn env=cartpole", ">= 475", steps=50_000),
    "cartpole_qrdqn": Row("policy=qrdqn env=cartpole", ">= 475", steps=50_000),
    "cartpole_c51": Row("policy=c51 env=cartpole", ">= 475", steps=100_000),
    "cartpole_iqn": Row("policy=iqn env=cartpole", ">= 475", steps=50_000),
    "cartpole_rainbow": Row("policy=rainbow env=cartpole", ">= 475", steps=100_000),
    "acrobot_dqn": Row("policy=dqn env=acrobot", ">= -90", steps=100_000),
    "acrobot_dqn_100k": Row(
        f"policy=dqn env=acrobot {ACROBOT}", ">= -76.6, rl-zoo3", steps=100_000
    ),
    "mountaincar_dqn": Row("experiment=zoo_dqn_mountaincar", ">= -100.8, rl-zoo3"),
    "mountaincar_qrdqn": Row(
        "experiment=zoo_dqn_mountaincar policy=qrdqn policy.atoms=25 torso.layer_norm=true",
        ">= -106, rl-zoo3",
    ),
    "lunarlander_dqn": Row(
        "experiment=zoo_dqn_lunarlander", ">= 154, rl-zoo3", needs="box2d"
    ),
    "lunarlander_ddqn_per": Row(
        "experiment=zoo_ddqn_per_lunarlander", ">= 265.9, SLM-Lab", needs="box2d"
    ),
    "acrobot_qrdqn": Row(
        f"policy=qrdqn env=acrobot {ACROBOT} policy.value_rescale_eps=1e-3 "
        "learner.replay_ratio=192",
        ">= -69.1, rl-zoo3", steps=100_000,
    ),
    # on-policy
    "cartpole_ppo": Row("policy=ppo env=cartpole", ">= 475", steps=100_000),
    "lunarlander_ppo": Row(
        "policy=ppo env=lunarlander", ">= 200", steps=1_000_000, needs="box2d"
    ),
    "lunarlander_continuous_ppo": Row(
        "experiment=zoo_ppo_lunarlander_continuous", ">= 270.9, rl-zoo3", needs="box2d"
    ),
    "mountaincar_ppo": Row("policy=ppo env=mountaincar", ">= -110"),
    "mountaincar_continuous_ppo": Row(
        "policy=ppo env=mountaincar_continuous", ">= 88.3, rl-zoo3 (20k steps)"
    ),
    "pendulum_ppo": Row(
        "policy=ppo env=pendulum run.stop_return=null", ">= -172.2, rl-zoo3", steps=100_000
    ),
    "cartpole_a2c": Row("policy=a2c env=cartpole", ">= 450", steps=500_000),
    "acrobot_ppo": Row("experiment=zoo_ppo_acrobot", ">= -81.3, SLM-Lab"),
    "acrobot_a2c": Row("experiment=zoo_a2c_acrobot", ">= -83.4, rl-zoo3"),
    "pendulum_a2c": Row("experiment=zoo_a2c_pendulum", ">= -163, rl-zoo3"),
    "novel_ppo": Row(
        "policy=ppo memory=lstm env=cartpole_novel policy.prev_inputs=true "
        "collector.n_sample=1024 run.stop_return=500",
        ">= 500, rl-zoo3", steps=100_000,
    ),
    "cartpole_pqn": Row(f"{PQN} env=cartpole", ">= 495.1", steps=500_000),  # CleanRL's pqn.py
    "acrobot_pqn": Row(f"{PQN} env=acrobot", ">= -95.6", steps=500_000),  # the same
    "mountaincar_pqn": Row(f"{PQN} env=mountaincar", ">= -110", steps=500_000),
    "pendulum_novel_ppo": Row(
        "policy=ppo memory=gru memory.hidden=64 env=pendulum_novel policy.prev_inputs=true "
        "run.stop_return=null run.eval_every=20000", ">= -217.9, rl-zoo3",
    ),
    "pendulum_novel_rsac": Row(
        "policy=rsac env=pendulum_novel run.stop_return=null run.eval_every=10000",
        ">= -217.9, rl-zoo3 (100k)", steps=60_000,
    ),
    "mountaincar_continuous_novel_ppo": Row(
        "policy=ppo memory=lstm env=mountaincar_continuous_novel policy.log_std_init=1 "
        "policy.normalize_reward=false policy.reward_scale=0.05 run.stop_return=93",
        ">= 91.5, rl-zoo3",
    ),
    "mountaincar_continuous_novel_rsac": Row(
        "experiment=zoo_rsac_mountaincar_continuous_novel", ">= 91.5, rl-zoo3 (300k frames)"
    ),
    "novel_pqn": Row(
        "policy=pqn memory=mingru memory.hidden=64 memory.readout=false env=cartpole_novel "
        "env.reward_scale=0.1 policy.normalize_reward=false policy.prev_inputs=true "
        "policy.gamma=0.99 policy.q_lambda=0.95 collector.num_envs=32 collector.n_sample=1024 "
        "learner.batch_size=128", ">= 450", steps=500_000,
    ),
    "memory_chain_pqn": Row("experiment=pqn_memory_chain", ">= 0.9"),
    "cartpole_impala": Row("policy=impala env=cartpole", ">= 450", steps=500_000),
    # continuous
    "pendulum_sac": Row("policy=sac env=pendulum run.stop_return=null", ">= -200", steps=20_000),
    "pendulum_td3": Row("policy=td3 env=pendulum run.stop_return=null", ">= -200", steps=20_000),
    "pendulum_ddpg": Row("policy=ddpg env=pendulum run.stop_return=null", ">= -200", steps=20_000),
    "pendulum_crossq": Row(
        "policy=crossq env=pendulum run.stop_return=null run.total_steps=20000 run.eval_every=5000",
        ">= -145.7, SLM-Lab",
    ),
    "lunarlander_sac": Row(
        "policy=sac env=lunarlander_continuous run.eval_every=5000 run.eval_episodes=50", ">= 220",
        steps=300_000, needs="box2d",
    ),
    "lunarlander_continuous_sac": Row(
        "experiment=zoo_sac_lunarlander_continuous", ">= 260, rl-zoo3 (500k)", needs="box2d"
    ),
    "lunarlander_continuous_tqc": Row(
        "experiment=zoo_tqc_lunarlander_continuous", ">= 278, rl-zoo3 (500k)", needs="box2d"
    ),
    "lunarlander_continuous_crossq": Row(
        "experiment=zoo_crossq_lunarlander_continuous", ">= 268.9, SLM-Lab", needs="box2d"
    ),
    "mountaincar_continuous_sac": Row(
        "experiment=zoo_sac_mountaincar_continuous", ">= 94.7, rl-zoo3 (50k frames)"
    ),
    "mountaincar_continuous_td3": Row(
        "experiment=zoo_td3_mountaincar_continuous", ">= 93.5, rl-zoo3 (50k frames)"
    ),
    "halfcheetah_sac": Row(
        "policy=sac env=halfcheetah run.stop_return=null", ">= 0.9 x halfcheetah_sac_sb3", **CHEETAH
    ),
    "halfcheetah_sac_sb3": Row(
        "control_sb3.py sac HalfCheetah-v5 {seed} 1 100000 50", "the peer", peer="sb3"
    ),
    "halfcheetah_td3": Row(
        "policy=td3 env=halfcheetah run.stop_return=null", ">= 0.9 x halfcheetah_td3_sb3", **CHEETAH
    ),
    "halfcheetah_td3_sb3": Row(
        "control_sb3.py td3 HalfCheetah-v5 {seed} 1 100000 50", "the peer", peer="sb3"
    ),
    # several agents
    "twostep_qmix": Row("policy=qmix env=twostep", ">= 8"),
    "twostep_vdn": Row("policy=vdn env=twostep", "== 7"),
    "twostep_dqn": Row("policy=dqn env=twostep", "<= 7"),
    # R2D2 and its memories
    "cartpole": Row("policy=r2d2 env=cartpole", ">= 475, 60 s, 60k steps"),
    "novel_default": Row("policy=r2d2 env=cartpole_novel", ">= 450, 150k steps"),
    "novel_dqn": Row("policy=dqn env=cartpole_novel policy.prev_inputs=true", "<= 180"),
    "acrobot_r2d2": Row("policy=r2d2 env=acrobot", ">= -100, 200k steps"),
    "repeat_default": Row("policy=r2d2 env=repeat_previous", ">= 0.9, 200k steps"),
    "repeat": Row("experiment=r2d2_repeat_previous", ">= 0.9, 120 s, 200k steps"),
    "repeat_gru": Row("experiment=r2d2_repeat_previous memory=gru", ">= 0.9"),
    "repeat_mingru": Row(f"experiment=r2d2_repeat_previous {MINGRU}", ">= 0.9"),
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
    "minigrid": Row(
        "policy=r2d2 env=minigrid_memory_s7", ">= 0.5, half without memory", steps=500_000,
        needs="minigrid",
    ),
    "minigrid_none": Row(
        "policy=r2d2 memory=none env=minigrid_memory_s7", "<= 0.5", steps=500_000,
        needs="minigrid",
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


# -- runs ------------------------------------------------------------------------------------------


def main(o: Namespace) -> int:
    """Run what has no result yet; the exit code: 1 when a run failed."""
    if o.table is not None:
        page = runs.HERE / "TABLES.md"
        scores = markdown(ROWS, read(o.table))
        page.write_text(insert(page.read_text("utf-8"), scores), "utf-8")
        return 0
    rows = {name: ROWS[name] for name in o.only or (["cartpole_ppo"] if o.quick else ROWS)}
    if o.quick:  # one short run, a score that demands nothing
        short = {"threshold": "quick", "steps": 2_000, "episodes": 2, "seeds": 1}
        rows = {name: replace(row, **short) for name, row in rows.items()}
    results = read(o.out)
    tasks = [(name, seed) for name in rows for seed in _todo(rows[name], name, o, results)]
    with tempfile.TemporaryDirectory() as work, _appending(o.out, results) as say:
        for name, row in rows.items():
            if why := missing(row, o.peers):
                say({"row": name, "command": row.command, "status": "skipped", "why": why})

        def one(task: tuple[str, int]) -> None:
            name, seed = task
            folder = Path(work) / f"{name}_s{seed}"
            say({"row": name, **run_seed(rows[name], seed, folder, o.peers, alone=o.jobs == 1)})
            shutil.rmtree(folder, ignore_errors=True)

        if o.jobs == 1:
            for task in tasks:
                one(task)
        else:
            with ThreadPoolExecutor(o.jobs) as pool:
                list(pool.map(one, tasks))
    print(markdown(rows, results), end="")
    return 1 if any(r["status"] == "failed" for r in results[-len(tasks) :]) and tasks else 0


def _todo(row: Row, name: str, o: Namespace, results: list[Result]) -> list[int]:
    """The seeds that have no result yet; none of a row that cannot be run here."""
    if missing(row, o.peers):
        return []
    seeds = range(o.first_seed, o.first_seed + (row.seeds if o.quick else o.seeds or row.seeds))
    return [s for s in seeds if s not in done(results, name, row)]


@contextmanager
def _appending(path: Path | None, results: list[Result]) -> Iterator[Any]:
    """Calling it adds a result to the list, the file (written through) and the terminal."""
    lock = threading.Lock()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.read_bytes().endswith(b"\n"):  # an interrupted line
            whole = path.read_bytes().rpartition(b"\n")
            path.write_bytes(whole[0] + whole[1])

    def say(result: Result) -> None:
        with lock:
            results.append(result)
            if path is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
            shown = {k: result[k] for k in ("seed", "status", "score", "why") if k in result}
            print(f"{result['row']}: {' '.join(f'{k} {v}' for k, v in shown.items())}",
                  file=sys.stderr, flush=True)  # fmt: skip

    yield say


def run_seed(row: Row, seed: int, work: Path, peers: Path | None, *, alone: bool = False) -> Result:
    """Result of one seed for the table: trained and scored, or the reason of its failure.

    ``alone``: it may use the threads it would use by itself, else one.
    """
    facts = {"seed": seed, "command": row.command, "commit": runs.commit()}
    facts["machine"] = runs.machine()
    try:
        found = _peer(row, seed, peers) if row.peer else _own(row, seed, work, alone)
    except PeerFailed as e:
        return {**facts, "status": "failed", "why": str(e)}
    return {**facts, "status": "done", **found}


def _own(row: Row, seed: int, work: Path, alone: bool) -> Result:
    work.mkdir(parents=True)
    for line in row.prepare:
        _rlrun(shlex.split(line.format(work=work, seed=seed))[1:])
    words = row.command.format(work=work, seed=seed).split()[1:]
    words += [f"seed={seed}", f"run.dir={work}/run", "-q"]
    wall = _rlrun(words if alone else [*words, "learner.threads=1"])[1]
    record = json.loads((work / "run/run.json").read_text())
    found = {"score": score(work / "run", row), "env_steps": record["env_steps"]}
    found |= {"wall_seconds": round(wall, 1), "digest": record["digest"], "alone": alone}
    if (work / "behaviour").exists():
        found["behaviour"] = score(work / "behaviour", row)
    last: dict[str, float] = {}
    for line in runs.json_lines(work / "run/metrics.jsonl"):
        last |= {k: v for k, v in line.items() if "delta_q" in k}
    return found | {k.removeprefix("train/"): round(v, 4) for k, v in last.items()}


def _rlrun(words: Sequence[str]) -> tuple[str, float]:
    """(standard output, wall seconds) of a command of this checkout."""
    out, process = runs.measured([*runs.RLRUN, *words], None)
    return out, process["process"]


def score(run_dir: Path, row: Row) -> float:
    """Result of ``rlrun eval`` for the final weights, on seeds that training never used."""
    lines = _rlrun(["eval", str(run_dir), "--episodes", str(row.episodes)])[0].splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines)}[row.metric]


def _peer(row: Row, seed: int, peers: Path | None) -> Result:
    script, *arguments = row.overrides.format(seed=seed).split()
    found = runs.peer_run(runs.interpreter(peers, row.peer), script, *arguments, threads=1)
    wall = round(found["process"], 1)
    return {"score": found["score"], "env_steps": found["env_steps"], "wall_seconds": wall}


# -- statistics and table --------------------------------------------------------------------------


def iqm(scores: np.ndarray) -> np.ndarray:
    """The interquartile mean of ``scores`` [..., N], one per seed; [...]."""
    return np.asarray(aggregate_iqm(scores[..., None]))


def interval(scores: Sequence[float], *, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of the IQM of resampled scores, one per seed.

    The same scores give the same interval.
    """
    draws, x = np.random.default_rng(0), np.asarray(scores, float)
    drawn = x[draws.integers(len(x), size=(RESAMPLES, len(x)))]
    low, high = np.quantile(iqm(drawn), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def read(path: Path | None) -> list[Result]:
    """The lines of a results file; none when it is not there yet.

    A last line that an interruption cut short is left out; keys that were renamed since have their
    present names.
    """
    if path is None or not path.exists():
        return []
    *lines, rest = path.read_text("utf-8").split("\n")
    assert not rest or rest[0] == "{", f"{path} holds something else"
    text = "\n".join(filter(None, lines))
    for old, new in RENAMED.items():
        text = text.replace(f" {old}=", f" {new}=")
    return [json.loads(line) for line in text.splitlines()]


def done(results: Sequence[Result], name: str, row: Row) -> dict[int, Result]:
    """seed -> the last finished run of the row's present command."""
    mine = [r for r in results if r["row"] == name and r.get("command") == row.command]
    return {r["seed"]: r for r in mine if r["status"] == "done"}


def markdown(rows: Mapping[str, Row], results: Sequence[Result]) -> str:
    """One line for every row, those that were not run with the reason; then what they ran on."""
    head = ("command after `rlrun`", "wanted", "IQM (95 %)", "met", "scores", "env steps", "wall s")
    text = table(head, [_cells(name, row, rows, results) for name, row in rows.items()])
    used = [r for name, row in rows.items() for r in done(results, name, row).values()]
    if used:
        machines = "; ".join(sorted({r["machine"] for r in used}))
        threads = ", or as many as its config says" if any(r.get("alone") for r in used) else ""
        text += f"\n\nMachine: {machines}, one thread a run{threads}. Commits: in the results."
    return f"{text}\n"


def _cells(name: str, row: Row, rows: Mapping[str, Row], results: Sequence[Result]) -> list[str]:
    runs = [r for _, r in sorted(done(results, name, row).items())]
    start = [f"`{row.command.removeprefix('rlrun ')}`", row.threshold]
    if not runs:
        return [*start, why_not(name, row, results), "", "", "", ""]
    scores = [r["score"] for r in runs]
    low, high = interval(scores)
    number = _format(scores)
    steps = sorted(r["env_steps"] for r in runs)
    span = " to ".join(dict.fromkeys(_thousands(s) for s in (steps[0], steps[-1])))
    wall = sorted(r["wall_seconds"] for r in runs)
    return [
        *start,
        f"{number(iqm(np.array(scores)))} ({number(low)} to {number(high)})",
        _met(row, runs, rows, results),
        " ".join(map(number, scores)),
        span,
        f"{wall[0]:.0f} to {wall[-1]:.0f}",
    ]


def _thousands(steps: int) -> str:
    return f"{steps / 1000:.0f}k" if steps >= 1000 else str(steps)


def _format(scores: Sequence[float]) -> Any:
    digits = 3 if max(map(abs, scores)) <= 2 else 1 if max(map(abs, scores)) < 100 else 0
    return lambda x: f"{x:.{digits}f}"


def _met(row: Row, runs: Sequence[Result], rows: Mapping[str, Row], results: list[Result]) -> str:
    bound = bound_of(row.threshold)
    if bound is None:
        return ""

    def score_of(other: str) -> float | None:
        if other == "behaviour":
            found = [r["behaviour"] for r in runs if "behaviour" in r]
        elif other not in rows:  # a table of some rows
            return None
        else:
            found = [r["score"] for r in done(results, other, rows[other]).values()]
        return float(iqm(np.array(found))) if found else None

    verdict = bound.met(float(iqm(np.array([r["score"] for r in runs]))), score_of)
    word = {True: "yes", False: "**no**", None: f"no {bound.other} yet"}[verdict]
    return word if len(runs) >= row.seeds else f"{word}, {len(runs)} of {row.seeds} seeds"


def why_not(name: str, row: Row, results: Sequence[Result]) -> str:
    """Why a row has no score: skipped, failed, or not run yet."""
    said = [r for r in results if r["row"] == name and r.get("command") == row.command]
    return f"{said[-1]['status']}: {said[-1]['why']}" if said else "not run yet"


def insert(text: str, table: str) -> str:
    """``text`` with the table between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "the markers of the score table are gone"  # noqa: PT018
    return f"{before}{BEGIN}{table}{END}{after}"
