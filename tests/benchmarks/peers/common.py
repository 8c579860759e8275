"""What peers' scripts share: settings of algorithms, evaluations, output, kills, serving.

Imported by scripts that run in a peer's own environment: no rlrun here, no package either.
"""

import hashlib
import importlib.util
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

OUT = sys.stdout  # some peers print: ``quiet`` leaves it to the answers alone
ENV = "CartPole-v1"
EVAL_EVERY, EPISODES, EVAL_SEED = 2000, 50, 1_000_000
CONFORM = Path(__file__).parents[3] / "rlrun" / "env" / "conform.py"
COLLECT = 256  # env steps that take turns with learning


class DQN:
    """conf/experiment/zoo_dqn_cartpole.yaml as numbers."""

    HIDDEN, LR, GAMMA, CLIP = [256, 256], 2.3e-3, 0.99, 10.0
    BATCH, CAPACITY, START = 64, 100_000, 1000  # START: env steps at random, no learning before
    UPDATES = 128  # behind COLLECT env steps
    EPS_END, EPS_OVER = 0.04, 8000  # epsilon falls from 1 over that many env steps


class PPO:
    """conf/experiment/zoo_ppo_cartpole.yaml as numbers; ENVS * STEPS is COLLECT."""

    ENVS, STEPS, BATCH, EPOCHS = 8, 32, 256, 20
    LR, CLIP, GAMMA, LAMBDA = 1e-3, 0.2, 0.98, 0.8  # LR and CLIP fall to 0 over the run
    VALUE, ENTROPY, NORM, EPS = 0.5, 0.0, 0.5, 1e-5


class PQN:
    """``tests.benchmarks.jax.RUNS`` as numbers."""

    ENVS, STEPS, EPOCHS, MINIBATCHES = 32, 32, 4, 4
    LR, CLIP, GAMMA = 1e-3, 10.0, 0.99
    LAMBDA = 0.65  # rlrun: 0.95, with which rejax solves 6 of 10 seeds instead of 9
    EPS_END, EPS_SHARE = 0.05, 0.5  # epsilon falls from 1 over that share of the run


class RecurrentPQN(PQN):
    """``tests.benchmarks.jax.RUNS["pqn_gru"]`` as numbers."""

    HIDDEN, LR, LAMBDA, REWARD_SCALE = 64, 2e-3, 0.95, 0.1  # LR falls to 0 over the run


@dataclass
class Run:
    """The clock of a run, started by making one, and its evaluations between collects."""

    evaluate: Callable[[], float] | None = None  # mean return of EPISODES greedy episodes
    start: float = field(default_factory=time.perf_counter)
    curve: list[tuple[int, float, float, float]] = field(default_factory=list)
    eval_seconds: float = 0.0

    def after(self, env_steps: int, *, last: bool = False) -> None:
        """Evaluate when the last collect passed a multiple of EVAL_EVERY, and at the end."""
        due = env_steps // EVAL_EVERY > max(0, env_steps - COLLECT) // EVAL_EVERY
        done = bool(self.curve) and self.curve[-1][0] == env_steps
        if done or not (due or last):
            return
        assert self.evaluate is not None
        began = time.perf_counter()
        score = float(self.evaluate())
        end = time.perf_counter()
        self.eval_seconds += end - began
        self.curve.append((env_steps, score, end - self.start, self.eval_seconds))

    def answer(self, env_steps: int, updates: int, net: Any) -> None:
        """Print the line of the script; call it where the run ends."""
        import torch

        say({
            "wall": time.perf_counter() - self.start, "env_steps": env_steps, "updates": updates,
            "parameters": parameters(net), "eval_seconds": self.eval_seconds, "curve": self.curve,
            "threads": torch.get_num_threads(),
        })  # fmt: skip


def parameters(net: Any) -> int:
    return sum(p.numel() for p in net.parameters())


def integers(words: list[str]) -> list[int]:
    """The arguments of a script, the second of which is torch's number of threads."""
    import torch

    found = [int(word) for word in words]
    torch.set_num_threads(found[1])
    return found


def quiet() -> None:
    """What the peer prints goes to standard error."""
    sys.stdout = sys.stderr


def say(message: dict) -> None:
    """Print a JSON line."""
    print(json.dumps(message), file=OUT, flush=True)


NO_PREVIOUS, NO_REPLAY = "previous action and reward are no inputs", "no replay"  # cannot


def probe_main(
    version: str, cannot: dict[str, str], score: Callable[[str, dict, Any, int], float],
    every: dict[str, Any], settings: dict[str, dict[str, Any]],
) -> None:  # fmt: skip
    """Answer PROBE CONTROL SEED: the greedy return, or why a library cannot express the probe.

    ``score`` gets the probe's name, its settings (``every`` and, of this probe, ``settings``),
    ``make`` of rlrun.env.conform for it, and the seed.
    """
    import numpy as np
    import torch

    quiet()
    probe, control, seed = sys.argv[1], sys.argv[2] == "1", int(sys.argv[3])
    if probe in cannot:
        say({"cannot": cannot[probe], "version": version})
        return
    spec = importlib.util.spec_from_file_location("conform", CONFORM)
    conform = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conform)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    make = partial(conform.make, probe, control=control)
    found = score(probe, every | settings.get(probe, {}), make, seed)
    say({"score": found, "version": version})


def mean_return(make: Any, seed: int, act: Callable[[Any, Any], tuple[int, Any]]) -> float:
    """Return the mean return of 200 episodes of the evaluation.

    ``act(obs, state)`` returns an action and the next state; ``state`` is None in row 0.
    """
    env, total = make(evaluation=True), 0.0
    for episode in range(200):
        obs, _ = env.reset(seed=seed + 1000 if episode == 0 else None)
        state, ended = None, False
        while not ended:
            action, state = act(obs, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + reward, terminated or truncated
    return total / 200


class Killed:
    """DQN of the trainings that are killed: short, with all that a checkpoint has to hold."""

    HIDDEN, LR, GAMMA, BATCH, CAPACITY = [64, 64], 1e-3, 0.99, 32, 10_000
    START, COLLECT, UPDATES, TARGET = 128, 64, 16, 64  # UPDATES behind COLLECT env steps
    EPS_END, EPS_OVER = 0.1, 400


def serve_trainings(version: str, train: Callable[[int, int, int], None]) -> None:
    """Train in each directory that standard input names, in a new process; print its id.

    ``train`` gets SEED, STEPS and EVERY (arguments of the script) and begins or resumes in the
    working directory. The line "wait" waits for the process and prints its exit code.
    """
    import numpy as np
    import torch
    import torch._dynamo  # an optimiser's first step would import it in each process

    seed, _, steps, every = integers([sys.argv[1], "1", *sys.argv[2:]])
    child = 0

    def answer(line: str) -> dict:
        nonlocal child
        if line.strip() == "wait":
            return {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
        child = os.fork()
        if child:
            return {"pid": child}
        os.chdir(line.strip())
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            train(seed, steps, every)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    serve({"version": version}, answer)


def note(event: str, step: int, **parts: Any) -> None:
    """Add a line to the file ``events``: what happened at which env step, digests of parts.

    The states of the process's generators are one of them.
    """
    parts["generators"] = globals_state()
    digests = {name: digest(part) for name, part in parts.items()}
    with open("events", "a") as file:
        line = {"event": event, "step": step, "parts": digests}
        file.write(json.dumps(line) + "\n")


def newest(steps: Iterable[int], load: Callable[[int], Any]) -> Any:
    """Return what ``load`` makes of the newest checkpoint that it can read, None if there is none.

    A checkpoint that cannot be read is noted as "unreadable".
    """
    for step in sorted(steps, reverse=True):
        try:
            return load(step)
        except Exception:
            note("unreadable", step)
    return None


def globals_state() -> tuple:
    """Return the states of the process's generators: Python's, numpy's and torch's."""
    import numpy as np
    import torch

    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def cartpole_state(env: Any) -> tuple:
    """Return the state of a CartPole and of its generator."""
    return env.unwrapped.state, env.unwrapped.np_random.bit_generator.state


def digest(value: Any) -> str:
    """Return a hash of containers of arrays, tensors and numbers."""
    found = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, dict):
            for name in part:
                add(name)
                add(part[name])
        elif isinstance(part, list | tuple):
            for item in part:
                add(item)
        else:
            array = part.detach().cpu().numpy() if hasattr(part, "detach") else part
            found.update(array.tobytes() if hasattr(array, "tobytes") else repr(part).encode())

    add(value)
    return found.hexdigest()[:16]


def serve(facts: dict, answer: Callable[[str], dict]) -> None:
    """Print the facts, then an answer to every line of standard input."""
    say(facts)
    for line in sys.stdin:
        say(answer(line))


def timed(function: Callable[[], object], calls: int) -> dict:
    """Seconds of a call, by the wall clock and of CPU time."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(calls):
        function()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall / calls, "cpu": cpu / calls}


def resident() -> int:
    """Bytes of this process in memory."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux: the most it ever was
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
