"""The shapes that are measured, and rlrun's side of them: policy, replay, prepared sample."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import torch

from tests.benchmarks.floor import (
    ACTIONS,
    ADAM_EPS,
    CLIP,
    ETA,
    GAMMA,
    LR,
    RESCALE_EPS,
    THETA,
    Floor,
    Shape,
)
from tests.benchmarks.product import R2D2, Replay, Sample, Segment, make_plan
from tests.benchmarks.product import make_policy as make_named_policy
from tests.buffer.factory import make_replay as make_table_replay
from tests.compose import config

PEERS = Shape("lstm64", 4, (128, 128, 64), 64, (64,), 64, 20, 80, 5)  # the peers' floor
DEFAULT = Shape("lstm32", 4, (32,), 32, (), 32, 4, 20, 5)  # rlrun policy=r2d2
SHAPES = {s.name: s for s in (PEERS, DEFAULT)}
SHORT = Shape("lstm64", 4, (128, 128, 64), 64, (64,), 64, 2, 40, 5)
WIDER = Shape("lstm128", 4, (128, 128, 64), 128, (64,), 64, 40, 80, 5)
LARGE = Shape("lstm512", 4, (128, 128, 64), 512, (64,), 64, 40, 80, 5)
EPISODE = 500  # steps of the episodes the replay is filled with


def make_policy(
    shape: Shape,
    *,
    prev_inputs: bool = True,
    clip: float | None = CLIP,
    threads: int = 1,
    precision: str = "float32",
    backend: str = "torch",
) -> R2D2:
    """rlrun's policy with the layer sizes and the hyperparameters of the floor."""
    c = config(
        "policy=r2d2", "env=cartpole", f"learner.batch_size={shape.batch}",
        f"learner.threads={threads}", f"learner.precision={precision}",
        f"learner.backend={backend}",
        f"policy.learn_unroll_len={shape.unroll}", f"policy.burnin_step={shape.burnin}",
        f"policy.nstep={shape.nstep}", f"policy.gamma={GAMMA}", f"policy.lr={LR}",
        f"policy.adam_eps={ADAM_EPS}", f"policy.grad_clip={'null' if clip is None else clip}",
        f"policy.eta={ETA}", f"policy.target_tau={THETA}",
        f"policy.value_rescale_eps={RESCALE_EPS}", f"policy.head_hidden={list(shape.head)}",
        f"policy.prev_inputs={prev_inputs}", f"torso.hidden={list(shape.torso)}",
        f"memory.hidden={shape.lstm}", "memory.forget_bias=1.0",
    )  # fmt: skip
    box = gym.spaces.Box(-np.inf, np.inf, (shape.obs,), np.float32)
    policy = make_named_policy(make_plan(c, (box, gym.spaces.Discrete(ACTIONS), 1)))
    assert isinstance(policy, R2D2)
    return policy


def twin(policy: R2D2, shape: Shape) -> Floor:
    """A floor with the weights of ``policy``; asserts that it has as many parameters."""
    floor = Floor(shape)
    for ours, theirs in ((policy.net, floor.net), (policy.target, floor.target)):
        theirs.load_state_dict({floor_name(n): w.clone() for n, w in ours.state_dict().items()})
    assert floor.parameters == parameters(policy), "the floor has other layers"
    return floor


def floor_name(name: str) -> str:
    """The floor's name of a parameter of QNet."""
    return name.replace("torso.layers", "encoder").replace("memory.core", "lstm")


def parameters(policy: R2D2) -> int:
    return sum(p.numel() for p in policy.net.parameters())


def make_rows(shape: Shape, *, rows: int, columns: int, seed: int = 0) -> Segment:
    """Random rows as a collector writes them: episodes of EPISODE steps, each with an end row.

    Columns are out of step with one another; every second episode is terminated, the others are
    truncated.
    """
    g = np.random.default_rng(seed)
    clock = np.arange(rows + 1)[:, None] + g.integers(EPISODE + 1, size=columns)
    clock -= clock[0] // 2  # column c is somewhere in its first episode
    t, episode = clock % (EPISODE + 1), clock // (EPISODE + 1)
    first = t == 0
    first[0] = True
    last, even = t[:rows] == EPISODE - 1, episode[:rows] % 2 == 0

    def floats(*size: int) -> torch.Tensor:
        return torch.from_numpy(g.standard_normal(size, np.float32))

    states = (floats(rows, columns, shape.lstm) * 0.1, floats(rows, columns, shape.lstm) * 0.1)
    return Segment(
        obs=floats(rows + 1, columns, shape.obs),
        first=torch.from_numpy(first),
        action=torch.from_numpy(g.integers(ACTIONS, size=(rows, columns))),
        reward=torch.from_numpy(g.random((rows, columns), np.float32)),
        terminated=torch.from_numpy(last & even),
        truncated=torch.from_numpy(last & ~even),
        valid=torch.from_numpy(t[:rows] != EPISODE),
        state=(states[0][0], states[1][0]),
        states=states,
    )


def make_replay(shape: Shape, *, rows: int, columns: int = 16, kind: str = "prioritized") -> Replay:
    """A replay that holds ``rows`` rows of ``make_rows`` in all."""
    policy = make_policy(shape)
    segment = make_rows(shape, rows=rows // columns, columns=columns)
    replay = make_table_replay(
        segment, rows=rows // columns + 1, window=policy.window,
        capacity=2 * rows // policy.window.learned, kind=kind,
    )  # fmt: skip
    replay.add(segment)
    return replay


def full_sample(replay: Replay, batch: int, *, ends: int = 0) -> Sample:
    """``batch`` windows without padding; the last transition of ``ends`` of them terminates."""
    keys = replay.windows.keys(replay.windows.all())
    s = replay.get(keys, 0).segment
    whole = s.valid.all(0) & ~s.first.any(0) & ~(s.terminated | s.truncated).any(0)
    picked = keys[whole.numpy()][:batch]
    assert len(picked) == batch, f"only {len(picked)} full windows of {replay.window.rows} rows"
    sample = replay.get(picked, 0)
    sample.segment.terminated[-1, :ends] = True
    weight = np.random.default_rng(2).uniform(0.2, 1.0, batch).astype(np.float32)
    return replace(sample, weight=torch.from_numpy(weight))
