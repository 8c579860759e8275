"""Exported policies beside their actors over whole episodes: ``python -m tests.policy.export``.

Every policy is trained for a short while, exported with the command line, and played for 100
episodes of 1000 steps: the actor's actions drive the environment, the graph keeps its own state.
Pendulum never ends before its time limit; with five torques it has discrete actions. Prints, per
policy, the largest differences of numbers x in units of max(1, |x|), the discrete actions that
differ (ties: where the actor's own outputs are equal to 1e-5), and the time of a step of one
environment. ``--quick``: 10 episodes of 40 steps of policies that are trained for a moment.
"""

import argparse
import io
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.cli.main import main as rlrun
from rlrun.env import make_env
from rlrun.policy.greedy import GreedyStep, make_greedy_step
from rlrun.run.agent import TrainedPolicy, load_trained
from rlrun.run.build import make_policy
from rlrun.run.onnx import Deviation, GraphFunction, Numbers, SideBySide, onnx_session
from rlrun.run.plan import make_plan
from rlrun.types import no_actions
from tests.compose import config

TORQUES = ("env=pendulum", "env.wrappers=[{name: discretize_action, bins: 5}]")
BOX = ("env=pendulum",)
MASKED = ("env=pendulum", "env.wrappers=[{name: mask_obs, keep: [0, 1]}]")
PPO = ("policy.normalize_obs=true", "policy.normalize_reward=true")
CASES = {
    "r2d2 lstm": ("policy=r2d2", "memory=lstm", *TORQUES),
    "r2d2 gru": ("policy=r2d2", "memory=gru", *TORQUES),
    "r2d2 mingru": ("policy=r2d2", "memory=mingru", *TORQUES),
    "dqn": ("policy=dqn", *TORQUES),
    "ppo discrete": ("policy=ppo", *PPO, *TORQUES),
    "ppo box": ("policy=ppo", *PPO, *BOX),
    "ppo lstm box": ("policy=ppo", "memory=lstm", "policy.prev_inputs=true", *PPO, *MASKED),
    "sac": ("policy=sac", *BOX),
    "rsac gru": ("policy=rsac", "memory=gru", *MASKED),
}
ENVS = 10


def untrained(*words: str, spaces: Any = None) -> TrainedPolicy:
    """The policy of ``rlrun *words``, its weights such that actions vary.

    ``spaces``: as for ``make_plan``.
    """
    plan = make_plan(config(*words), spaces)
    policy, rng = make_policy(plan), torch.Generator().manual_seed(0)
    weights = {}
    for name, x in policy.weights().items():
        noise = torch.randn(x.shape, generator=rng)
        match name.rpartition(".")[2]:
            case "count":
                weights[name] = torch.full_like(x, 100)
            case "mean":  # of observations
                weights[name] = noise.to(x.dtype)
            case "var":
                weights[name] = 0.1 + noise.square()
            case "square":
                weights[name] = noise.square().to(x.dtype) * 100
            case _ if x.is_floating_point() and x.ndim > 1:
                weights[name] = x * (1 + 0.3 * noise) + 0.05 * noise
            case _:
                weights[name] = x
    policy.load(weights)
    return TrainedPolicy(plan, policy, env_steps=7)


def step_of(trained: TrainedPolicy) -> GreedyStep | None:
    """The module that is exported; None: the policy has none."""
    plan = trained.plan
    return make_greedy_step(trained.policy.actor(1), plan.row_spec, plan.config.env.frame_stack)


def eager(step: GreedyStep) -> GraphFunction:
    """What the exported graph computes, without the export."""

    @torch.no_grad()
    def run(inputs: Numbers) -> Numbers:
        tensors = {k: torch.from_numpy(np.ascontiguousarray(x)) for k, x in inputs.items()}
        return {k: x.numpy() for k, x in step.step(tensors).items()}

    return run


def play(trained: TrainedPolicy, step: GreedyStep, run: GraphFunction, episodes: int) -> Deviation:
    """The differences over ``episodes`` episodes in each of ENVS environments."""
    config = trained.plan.config
    env = make_env(config.env, num_envs=ENVS, evaluate=True)
    both = SideBySide(run, trained.policy, step, ENVS)
    obs, first = env.reset(seed=0), np.ones(ENVS, bool)
    action, reward = no_actions(step.spec.action, ENVS), np.zeros(ENVS, np.float32)
    ended = 0
    try:
        while ended < episodes * ENVS:
            action = both.act(obs, first, action, reward)
            row = env.step(action)
            obs, first, reward = row.obs, row.first, row.reward
            ended += int((row.terminated | row.truncated).sum())
    finally:
        env.close()
    return both.deviation


def microseconds(
    trained: TrainedPolicy, step: GreedyStep, run: GraphFunction, steps: int
) -> tuple[float, float]:
    """The time of a step of one environment, of the actor and of the graph; the best of 20."""
    actor, inputs = trained.policy.actor(1), step.inputs(1)
    rng = np.random.default_rng(0)
    obs = rng.normal(size=inputs["obs"].shape).astype(np.float32)
    inputs["obs"], first = obs, np.zeros(1, bool)
    action, reward = no_actions(step.spec.action, 1), np.zeros(1, np.float32)
    best = [np.inf, np.inf]
    for _ in range(20):
        state, began = actor.initial_state(), time.perf_counter()
        for _ in range(steps):
            state = actor.act(obs, first, action, reward, state, explore=None).state
        middle = time.perf_counter()
        for _ in range(steps):
            out = run(inputs)
            inputs |= {k[5:]: x for k, x in out.items() if k.startswith("next_state.")}
        ends = middle, time.perf_counter()
        best = [min(best[0], ends[0] - began), min(best[1], ends[1] - middle)]
    return best[0] / steps * 1e6, best[1] / steps * 1e6


def measure(name: str, top: Path, *, quick: bool, episodes: int) -> tuple[Deviation, str]:
    """Train, export and play the policy ``name``; return the differences and a line."""
    run_dir, path = top / name.replace(" ", "_"), top / f"{name.replace(' ', '_')}.onnx"
    length = 40 if quick else 1000
    size = ("debug=smoke",) if quick else ("run.total_steps=5000", "run.eval_every=5000")
    limits = (f"env.max_episode_steps={length}", "run.stop_return=null", f"run.dir={run_dir}", "-q")
    with redirect_stdout(io.StringIO()):
        code = rlrun([*CASES[name], *size, *limits])
        code = code or rlrun(["export", "policy", str(run_dir), "--onnx", str(path)])
    if code:
        sys.exit(code)
    trained = load_trained(run_dir, device="cpu")
    step = step_of(trained)
    assert step is not None
    run = onnx_session(str(path))
    d = play(trained, step, run, episodes // ENVS)
    own, graph = microseconds(trained, step, run, 20 if quick else 500)
    discrete = step.spec.action.dtype.kind != "f"
    other = (d.unlike, d.ties) if discrete else ("-", "-")
    counts = f"{other[0]:>6} {other[1]:>5}"
    line = (
        f"{name:14s}{d.rows:8d} {d.outputs:9.1e} {d.actions:9.1e} {counts} {own:7.1f} {graph:7.1f}"
    )
    return d, line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.policy.export", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="short training and episodes")
    return parser


def main() -> int:
    args = _parser().parse_args()
    good = True
    print(f"{'policy':14s}{'rows':>8s} {'outputs':>9s} {'actions':>9s} {'other':>6s} {'ties':>5s} "
          f"{'actor':>7s} {'onnx':>7s} (us)")  # fmt: skip
    with tempfile.TemporaryDirectory() as top:
        for name in args.names or CASES:
            d, line = measure(name, Path(top), quick=args.quick, episodes=10 if args.quick else 100)
            good &= d.within(1e-5)
            print(line, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
