"""Probes of rlrun.env.conform: rlrun and other libraries, each beside a control.

``--out FILE`` makes the runs that FILE lacks, ``--peers DIR`` those of other libraries too, and
``--only WORD ...`` some libraries or probes; without it the table of results/conformance.jsonl is
printed. A cell: the control (the same task without the trap) must be above the mark first, with the
same settings. CONFORMANCE.md says what each probe means.
"""

import time
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.benchmarks import runs
from tests.benchmarks.product import PROBES
from tests.benchmarks.rows import PeerFailed
from tests.benchmarks.rows import table as markdown

EVERY = """
policy.prev_inputs=false torso.hidden=[16] memory.hidden=16 run.eval_episodes=200
run.checkpoint_every=1000000
"""
REPLAYED = f"""{EVERY}
policy=r2d2 policy.nstep=1 policy.burnin_step=0 policy.learn_unroll_len=5 collector.num_envs=8
explore=linear learner.batch_size=32 learner.replay_ratio=32 learner.learning_starts=200
policy.lr.start=1e-2 policy.lr.end=1e-3 policy.target_tau=0.05 buffer.capacity=8000
"""
STORED = "policy.learn_unroll_len=4 torso.hidden=[] memory.hidden=32 buffer.capacity=1500 "
STORED += "run.total_steps=8000"  # 1 of 7 seeds fails after 4000 env steps
R2D2 = {  # settings of a probe beside those of all
    "own": STORED,
    "stored": f"{STORED} collector.num_envs=1",
    "odd": "collector.num_envs=3 learner.batch_size=7",
    "truncation": "policy.learn_unroll_len=3",
    "nstep": "policy.nstep=3 policy.learn_unroll_len=7",
    "previous": "policy.prev_inputs=true",
    "burnin": "policy.state_init=zero policy.learn_unroll_len=3 policy.burnin_step=1",
    "fresh": "run.eval_episodes=50",
    "padding": "policy.learn_unroll_len=9",
    "weights": "policy.value_rescale_eps=null policy.learn_unroll_len=2 buffer.beta=1 "
    "buffer.alpha=0.9 explore.epsilon=1 collector.num_envs=4",
}
ROLLED = f"""{EVERY}
memory=lstm collector.num_envs=8 collector.n_sample=256 policy.gamma=0.9 policy.lr.start=1e-2
policy.lr.end=1e-3 learner.batch_size=64
"""
SEGMENTS = "policy.segment_len=4 torso.hidden=[] memory.hidden=32"
ON_POLICY = {
    "own": SEGMENTS,
    "stored": f"{SEGMENTS} collector.num_envs=1",
    "odd": "collector.num_envs=3 policy.segment_len=5 learner.batch_size=7",
    "previous": "policy.prev_inputs=true",
    "burnin": "policy.segment_len=4",
    "fresh": "run.eval_episodes=50",
}
RSAC = R2D2 | {  # odd: whole episodes, as the critics' sequences start from zero states
    "odd": "collector.num_envs=3 learner.batch_size=7 policy.learn_unroll_len=10",
    "weights": "buffer=prioritized policy.learn_unroll_len=2 buffer.beta=1 buffer.alpha=0.9",
}
PPO = (
    f"{ROLLED} policy=ppo policy.gae_lambda=0.8 policy.normalize_obs=false "
    "policy.normalize_reward=false"
)
PQN = f"{ROLLED} policy=pqn policy.normalize_reward=false"
CONTROL = f"""{EVERY}
policy=rsac env.box=true policy.gamma=0.9 policy.burnin_step=0 policy.learn_unroll_len=5
collector.num_envs=8 learner.batch_size=32 learner.replay_ratio=32 learner.learning_starts=200
policy.lr=1e-2 policy.actor_lr=3e-3 policy.target_tau=0.05 buffer.capacity=8000
policy.head_hidden=[32] policy.temperature_auto=false policy.temperature=0.1
"""
OWN = {  # words, words of probes, env steps
    "rlrun R2D2": (REPLAYED, R2D2, 4000),
    "rlrun R2D2, overlapped": (f"{REPLAYED} pipeline=overlapped", R2D2, 2500),
    "rlrun R2D2, Ray": (f"{REPLAYED} pipeline=ray pipeline.num_actors=1", R2D2, 2500),
    "rlrun RSAC": (CONTROL, RSAC, 8000),
    "rlrun PPO-LSTM": (PPO, ON_POLICY, 16000),
    "rlrun PQN-LSTM": (PQN, ON_POLICY, 16000),
}
ZERO = "the critics' sequences start from zero states"
CANNOT = {
    "rlrun RSAC": {"own": ZERO, "stored": ZERO, "mask": "continuous actions have no masks"},
    "rlrun PPO-LSTM": {"weights": "no replay"},
    "rlrun PQN-LSTM": {"weights": "no replay"},
}
PEERS = {  # environment, script
    "sb3-contrib RecurrentPPO": ("sb3", "conform_recurrent_ppo.py"),
    "Tianshou recurrent DQN": ("tianshou", "conform_tianshou.py"),
    "TorchRL LSTM DQN": ("torchrl", "conform_torchrl.py"),
    "CleanRL PPO-LSTM": ("cleanrl", "conform_cleanrl.py"),
    "skrl PPO_RNN": ("skrl", "conform_skrl.py"),
    "DI-engine R2D2": ("diengine", "conform_diengine.py"),
    "RLlib PPO-LSTM": ("rllib", "conform_rllib.py"),
}

NO_CAUSE = {  # misses whose cause was not found: they may be those of the settings
    "TorchRL LSTM DQN": "own stored",
    "skrl PPO_RNN": "own burnin stored",
    "RLlib PPO-LSTM": "burnin",
}


def own_cell(
    library: str, probe: str, control: bool, seed: int, env_steps: int | None = None
) -> dict[str, Any]:
    """The answer of one of rlrun's policies, by the command line."""
    if probe in CANNOT.get(library, {}):
        return {"cannot": CANNOT[library][probe], "version": runs.commit()}
    words, more, steps = OWN[library]
    steps = env_steps or steps
    every = steps // 2 if probe == "fresh" else steps  # fresh: the second evaluation counts
    line = [*words.split(), f"env=conform_{probe}", f"env.control={str(control).lower()}"]
    line += [*more.get(probe, "").split(), f"run.eval_every={every}"]
    found = runs.own_run(*line, seed=seed, threads=1, env_steps=steps)
    return {"score": found["curve"][-1][1], "version": runs.commit()}


def peer_cell(library: str, probe: str, control: bool, seed: int, peers: Path) -> dict[str, Any]:
    """The answer of a peer's script: a score, or why the library cannot express the probe."""
    folder, script = PEERS[library]
    python = runs.interpreter(peers, folder)
    return runs.peer_run(python, script, probe, int(control), seed, threads=1)


def cell(library: str, probe: str, seed: int, peers: Path | None) -> dict[str, Any]:
    """A row of results: the scores of a library with and without the trap."""
    began, row = time.perf_counter(), {"library": library, "probe": probe, "seed": seed}
    for name, control in (("control", True), ("score", False)):
        if library in OWN:
            answer = own_cell(library, probe, control, seed)
        else:
            assert peers is not None
            answer = peer_cell(library, probe, control, seed, peers)
        if "cannot" in answer:
            return row | {"cannot": answer["cannot"], "version": answer["version"]}
        row |= {name: round(answer["score"], 3), "version": answer["version"]}
    row |= {"mark": PROBES[probe].pass_mark(), "seconds": round(time.perf_counter() - began, 1)}
    return row | {"machine": runs.machine()}


def verdict(row: dict[str, Any]) -> str:
    """The text of a cell: whether a library has the property."""
    if "cannot" in row:
        return "-"
    if row["control"] <= row["mark"]:
        return "?"
    if row["score"] > row["mark"]:
        return "yes"
    without = row["probe"] in NO_CAUSE.get(row["library"], "").split()
    return f"{'missed' if without else '**no**'} {row['score']:.2f}"


def table(rows: list[dict[str, Any]]) -> str:
    """Probes by libraries, as markdown; rlrun's learners share a column."""
    libraries: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        name = "rlrun" if row["library"] in OWN else row["library"]
        libraries.setdefault(name, {}).setdefault(row["probe"], []).append(verdict(row))
    lines = []
    for name, probe in PROBES.items():
        words = str(probe.__doc__).splitlines()[0].rstrip(".")
        cells = [_cell(found.get(name, [])) for found in libraries.values()]
        lines.append([f"`{name}`", words, f"{probe.pass_mark():g}", *cells])
    return markdown(["probe", "property", "mark", *libraries], lines)


def _cell(verdicts: list[str]) -> str:
    """The verdicts that differ, with their number if there are several."""
    count = {text: verdicts.count(text) for text in verdicts}
    if len(verdicts) < 2:
        return "".join(verdicts)
    return ", ".join(f"{n} {text}" for text, n in count.items())


def main(o: Namespace) -> int:
    """``--quick``: one probe, few env steps, no verdict."""
    if o.quick:
        row = own_cell("rlrun R2D2", "late", False, 0, 1500)
        print(f"late {row['score']:.2f}")
        return 0
    if o.out is not None:
        with mock.patch.object(runs, "in_process", True):  # imports take longer than some runs
            _run_missing(o)
    print(table(runs.json_lines(o.out or runs.RESULTS / "conformance.jsonl")))
    return 0


def _run_missing(o: Namespace) -> None:
    """Run the cells that ``o.out`` lacks."""
    done = {(row["library"], row["probe"]) for row in runs.json_lines(o.out)}
    for library in [*OWN, *(PEERS if o.peers else ())]:
        for probe in PROBES:
            words = f"{library} {probe}"
            if (library, probe) in done or (o.only and not any(w in words for w in o.only)):
                continue
            try:
                row = cell(library, probe, o.first_seed, o.peers)
            except PeerFailed as e:
                print(f"{library}, {probe}: {e}", flush=True)
                continue
            runs.keep(row, o.out)
