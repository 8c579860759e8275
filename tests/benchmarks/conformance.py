"""Probes of rlrun.env.conform: rlrun and other libraries, each beside a control.

``--out FILE`` makes the runs that FILE lacks, ``--peers DIR`` those of other libraries too, and
``--only WORD ...`` some libraries or probes; without it the table of results/conformance.jsonl is
printed. A cell: the control (the same task without the trap) must be above the mark first, with the
same settings. CONFORMANCE.md says what each probe means.
"""

import json
import time
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.benchmarks import runs
from tests.benchmarks.product import PROBES
from tests.benchmarks.rows import PeerFailed

EVERY = """
env=conform policy.prev_inputs=false torso.hidden=[16] memory.hidden=16 run.eval_episodes=200
run.checkpoint_every=1000000
"""
REPLAYED = f"""{EVERY}
policy=r2d2 policy.nstep=1 policy.burnin_step=0 policy.learn_unroll_len=5 collector.num_envs=8
explore=linear learner.batch_size=32 learner.replay_ratio=32 learner.learning_starts=200
policy.lr.start=1e-2 policy.lr.end=1e-3 policy.target_tau=0.05 buffer.capacity=8000
"""
STORED = "policy.learn_unroll_len=4 torso.hidden=[] memory.hidden=32 buffer.capacity=1500"
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
OWN = {"rlrun R2D2": (REPLAYED, R2D2, 4000)}  # words, words of probes, env steps
PEERS = {"sb3-contrib RecurrentPPO": ("sb3", "conform_recurrent_ppo.py")}  # environment, script


def own_cell(
    library: str, probe: str, control: bool, seed: int, env_steps: int | None = None
) -> dict[str, Any]:
    """The score of one of rlrun's policies, by the command line."""
    words, more, steps = OWN[library]
    steps = env_steps or steps
    line = [*words.split(), f"env.probe={probe}", f"env.control={str(control).lower()}"]
    line += [*more.get(probe, "").split(), f"run.eval_every={steps}"]
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
    """The text of a cell."""
    if "cannot" in row:
        return "cannot be expressed"
    score, mark = row["score"], row["mark"]
    if row["control"] <= mark:
        return "control not learned"
    return "passes" if score > mark else f"**fails** ({score:.2f}, mark {mark:.2f})"


def table(rows: list[dict[str, Any]]) -> str:
    """Probes by libraries, as markdown."""
    libraries = list(dict.fromkeys(row["library"] for row in rows))
    cells = {(row["probe"], row["library"]): verdict(row) for row in rows}
    lines = [["probe", *libraries], ["---"] * (len(libraries) + 1)]
    lines += [[f"`{p}`", *(cells.get((p, x), "") for x in libraries)] for p in PROBES]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


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
            print(json.dumps(row), flush=True)
            with o.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
