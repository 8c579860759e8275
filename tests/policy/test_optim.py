"""Adam and RAdam by torch's, learning rates of memories, precision, threads, CUDA graphs."""

import copy
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.errors import NumericError
from rlrun.policy import compute
from rlrun.policy.compute import WARM_UP, Compute, CudaGraph, Result, cpu_has_bf16_lstm
from rlrun.policy.optim import Adam, RAdam
from tests.compose import config
from tests.policy import make
from tests.policy.make import BOX, DISCRETE, RECURRENT, build, windows
from tests.policy.test_qmix import TEAM

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
SIZES = [(3, 2), (4,), (2, 2), (5,), (1,)]
APART = (1, 2, 4)  # two runs of successive ones


def numbers(seed):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=g) for size in SIZES]


def adam_of(own, *, flat, apart=APART, kind=Adam):
    made = kind(own, eps=1e-3, max_grad_norm=2.0, apart=[own[i] for i in apart])
    if flat:
        made.flatten()
    return made


@pytest.mark.parametrize("kind", [Adam, RAdam])
@pytest.mark.parametrize("flat", [False, True])
def test_steps_are_torchs_with_two_groups(flat, kind):
    """Moving rates; clipped by the norm over both groups; RAdam's denominators count from 6 on."""
    own, twin = numbers(0), [p.requires_grad_() for p in numbers(0)]
    adam = adam_of(own, flat=flat, kind=kind)
    groups = [{"params": [p for i, p in enumerate(twin) if (i in APART) == apart], "lr": 0.0}
              for apart in (False, True)]  # fmt: skip
    theirs = torch.optim.Adam if kind is Adam else torch.optim.RAdam
    reference = theirs(groups, eps=1e-3)
    for step in range(9):
        rates = (1e-2 / (step + 1), 1e-3)
        grads = [10.0 ** (step % 3 - 1) * x for x in numbers(100 + step)]  # around the clip
        for p, grad in zip(twin, grads, strict=True):
            p.grad = grad.clone()
        want = torch.nn.utils.clip_grad_norm_(twin, 2.0)
        for group, rate in zip(reference.param_groups, rates, strict=True):
            group["lr"] = rate
        reference.step()
        torch.testing.assert_close(adam.step([g.clone() for g in grads], *rates), want)
        for p, q in zip(own, twin, strict=True):
            torch.testing.assert_close(p, q.detach(), rtol=1e-5, atol=1e-6)
    assert int(adam.state_dict()["steps"][0]) == 9


@pytest.mark.parametrize("flat", [False, True])
def test_states_are_interchangeable_between_layouts(flat):
    """Saved with groups, continued without, in the other layout."""
    one, two = numbers(0), numbers(0)
    grouped, whole = adam_of(one, flat=flat), adam_of(two, flat=not flat, apart=())
    for step in range(3):
        grouped.step(numbers(100 + step), 1e-2, 1e-2)
    state = copy.deepcopy(grouped.state_dict())
    whole.load_state_dict(state)
    with torch.no_grad():
        for p, q in zip(two, one, strict=True):
            p.copy_(q)
    for step in range(3, 6):
        grouped.step(numbers(100 + step), 1e-2, 1e-2)
        whole.step(numbers(100 + step), 1e-2)
    for p, q in zip(one, two, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_an_error_before_the_step(flat, value):
    own = numbers(0)
    adam, grads = adam_of(own, flat=flat), numbers(1)
    grads[0][0, 0] = value
    before = [p.clone() for p in own]
    with pytest.raises(NumericError, match=r"train/grad_norm = .*policy\.lr"):
        adam.step(grads, 1.0, 1.0)
    assert all(map(torch.equal, own, before))


@pytest.mark.parametrize(
    ("name", "given"),
    [("r2d2", {}), ("sac", RECURRENT | {"spec": BOX}), ("qmix", {"spec": TEAM}),
     ("bc", {"memory": "lstm", "learn_unroll_len": 5}), ("ppo", {"memory": "gru"}),
     ("pqn", {"memory": "gru"})],
)  # fmt: skip
def test_a_memory_with_rate_0_stays_and_the_rest_learns(name, given):
    policy, spec = build(name, **given, memory_lr=make.constant(0.0)), given.get("spec", DISCRETE)
    sample = (make.rollout if name in ("ppo", "pqn") else windows)(policy, spec)
    before = make.weights(policy)
    assert policy.update(sample).metrics["train/lr"] > 0
    now = make.weights(policy)
    moved = {k for k, x in before.items() if not torch.equal(x, now[k])}
    memory = {k for k in before if ".memory." in k}
    assert memory
    assert moved == {*before} - memory


# -- precision and threads -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["r2d2", "qmix"])
def test_a_thread_for_the_target_network_changes_no_bit(name):
    given = {"spec": TEAM if name == "qmix" else DISCRETE}
    one, other = (build(name, **given, learner={"target_thread": t}) for t in (False, True))
    sample = windows(one, given["spec"])
    for _ in range(3):
        make.assert_same_update(one, other, sample, sample)


def test_an_exception_in_the_second_thread_is_raised_at_the_wait():
    def fail():
        raise ZeroDivisionError

    waited = Compute(target_thread=True).run_in_thread(fail)
    with pytest.raises(ZeroDivisionError):
        waited()


@pytest.mark.parametrize(
    ("name", "given"),
    [("r2d2", {"memory": "lstm"}), ("r2d2", {"memory": "gru"}), ("dqn", {}),
     ("cql", {}), ("sac", {"spec": BOX}), ("bc", {}), ("iql", {}), ("ppo", {}), ("pqn", {}),
     ("qmix", {"spec": TEAM})],
)  # fmt: skip
def test_bf16_is_close_and_weights_stay_float32(name, given):
    spec = given.get("spec", DISCRETE)
    exact, rough = (build(name, **given, learner={"precision": p}) for p in ("float32", "bf16"))
    sample = (make.rollout if name in ("ppo", "pqn") else windows)(exact, spec)
    if given.get("memory") == "lstm" and not cpu_has_bf16_lstm():  # refused before a run
        with pytest.raises(RuntimeError, match="LSTM"):
            rough.update(sample)
        return
    (a, want), (b, got) = (make.gradients(p, sample) for p in (exact, rough))
    losses = [u.metrics["train/loss"].item() for u in (a, b)]
    assert losses[0] != losses[1], "nothing was rounded"
    assert losses[1] == pytest.approx(losses[0], rel=0.05, abs=0.02)
    flat = [torch.cat([x[k].flatten() for k in want]) for x in (want, got)]
    assert torch.cosine_similarity(*flat, dim=0) > 0.99
    assert all(w.dtype == torch.float32 for w in rough.weights().values())


LARGE = "policy=r2d2 env=cartpole learner.batch_size=64 memory.hidden=128"
SMALL = "policy=r2d2 env=cartpole"
SAC, DQN = "policy=sac env=pendulum", "policy=dqn env=cartpole"
DDPG = "policy=ddpg env=pendulum"


@pytest.mark.parametrize(
    ("line", "cores", "threads", "second_thread"),
    [
        (LARGE, 2, 2, True),
        (LARGE, 1, 1, False),
        (f"{LARGE} pipeline=overlapped", 2, 1, False),
        (f"{LARGE} pipeline=overlapped", 4, 3, True),
        (f"{SMALL} learner.batch_size=64 memory.hidden=64", 2, 2, True),  # of a kernel
        (SMALL, 2, 1, False),
        (f"{SMALL} learner.target_thread=true", 2, 1, True),
        (f"{LARGE} learner.target_thread=false", 2, 2, False),
        (f"{LARGE} learner.threads=1", 2, 1, False),
        (SAC, 2, 1, True),
        (f"{DDPG} torso.hidden=[256,256]", 2, 1, True),
        (f"{DDPG} torso.hidden=[64,256]", 2, 1, False),
        (f"{SAC} torso.hidden=[256] policy.head_hidden=[256]", 2, 1, True),
        (f"{SAC} learner.batch_size=128", 2, 1, False),
        (f"{SAC} learner.threads=1", 2, 1, False),
        (f"{SAC} pipeline=overlapped", 2, 1, False),
        ("policy=rsac env=pendulum", 2, 1, False),
        (DQN, 2, 1, False),
        (f"{DQN} torso.hidden=[1024]", 2, 2, False),
        (f"{DQN} torso=nature_cnn", 2, 2, False),
    ],
)
def test_threads_follow_a_rule(monkeypatch, line, cores, threads, second_thread):
    """A function of config and cores alone: nothing is measured when a run begins."""
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    plan = make.make_plan(config(*line.split()))
    assert (plan.threads, plan.target_thread) == (threads, second_thread)


# -- graphs and compilation: no GPU and no compiler here, so the private parts with stand-ins ------


class Recorder:
    """Stands in for CUDA: nothing runs at the capture; a replay reads what was captured."""

    def __init__(self) -> None:
        self.captures, self.replays = 0, 0
        self.error: str | None = None
        self.result: Result | None = None

    def __call__(self, function: Callable[[], Result]) -> Callable[[], Result]:
        self.captures += 1
        if self.error is not None:
            raise RuntimeError(self.error)

        def replay() -> Result:
            self.replays += 1
            fresh = function()
            if self.result is None:
                self.result = fresh
            else:  # a graph writes to the same places every time
                self.result[0].copy_(fresh[0])
                for name, x in self.result[1].items():
                    x.copy_(fresh[1][name])
            return self.result

        return replay


GENTLE = {"lr": make.linear(1e-2, 1e-3), "memory_lr": make.constant(1e-3), "adam_eps": 1e-3}


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setattr(compute, "cuda_capture", made)
    return made


def graphed():
    policy = build("r2d2", **GENTLE)
    policy.graph = CudaGraph(policy.gradient_step, torch.device("cpu"))
    return policy


def samples_of(policy, count, size=8):
    whole, g = windows(policy), np.random.default_rng(0)
    whole = replace(whole, segment=replace(whole.segment, partial=()))
    parts = [make.window(whole, g.integers(10, size=size)) for _ in range(count)]
    return [replace(p, env_steps=10 * i) for i, p in enumerate(parts)]


def test_a_graph_gives_the_same_numbers_and_writes_to_no_sample_and_no_result(recorder):
    """Both learning rates move from step to step."""
    plain, other = build("r2d2", **GENTLE), graphed()
    samples = samples_of(plain, WARM_UP + 5)
    before = [[x.clone() for x in s.segment.tensors()] for s in samples]
    kept = [(plain.update(s), other.update(s)) for s in samples]
    assert (recorder.captures, recorder.replays) == (1, 5)
    for want, got in kept:  # afterwards: no result is overwritten by a later update
        torch.testing.assert_close(got.priority, want.priority, rtol=1e-4, atol=1e-5)
        for key, value in want.metrics.items():
            torch.testing.assert_close(got.metrics[key], value, msg=key, rtol=1e-4, atol=1e-5)
    for a, b in ((make.weights(plain), make.weights(other)),
                 (make.targets(plain), make.targets(other))):  # fmt: skip
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for sample, tensors in zip(samples, before, strict=True):
        assert all(map(torch.equal, sample.segment.tensors(), tensors))


def test_other_shapes_and_partial_burn_ins_go_one_by_one(recorder):
    """Lengths of partial burn-ins are host numbers: a graph would hold those of one batch."""
    policy = graphed()
    for sample in samples_of(policy, WARM_UP + 2):
        policy.update(sample)
    (odd,) = samples_of(policy, 1, size=3)
    assert len(policy.update(odd).priority) == 3
    partial = make.window(windows(policy), range(8))
    assert partial.segment.partial
    policy.update(partial)
    assert (recorder.captures, recorder.replays) == (1, 2)


def test_a_failed_capture_is_logged_once(recorder, caplog):
    recorder.error = "EPERM\nmore"
    plain, other = build("r2d2", **GENTLE), graphed()
    for i, sample in enumerate(samples_of(plain, WARM_UP + 4)):
        plain.update(sample)
        other.update(sample)
        assert len(caplog.messages) == (i >= WARM_UP)
    assert "EPERM" in caplog.text
    assert recorder.captures == 1
    torch.testing.assert_close(make.weights(plain), make.weights(other), rtol=1e-4, atol=1e-5)


@CUDA
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_gpu_gives_the_same_numbers_as_a_graph_and_an_update_does_not_wait():
    plain, other = (make.build_on("cuda", "r2d2", cuda_graph=graph) for graph in (False, True))
    samples = samples_of(build("r2d2"), WARM_UP + 20)
    for sample in samples:
        want, got = plain.update(sample), other.update(sample)
        torch.testing.assert_close(got.priority, want.priority, rtol=1e-4, atol=1e-5)
    assert other.graph.replay is not None
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for sample in samples:
            plain.update(sample)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@CUDA
@pytest.mark.parametrize("size", [1.0, 0.01])
def test_gradients_in_bf16_on_a_gpu_do_not_underflow(size):
    """Autocast computes an LSTM in float16 there."""
    plain, rough = (make.build_on("cuda", "r2d2", precision=p) for p in ("float32", "bf16"))
    (sample,) = samples_of(build("r2d2"), 1)
    reward = sample.segment.reward * size
    sample = replace(sample, segment=replace(sample.segment, reward=reward))
    want, got = ([x for x in p.gradients(sample).grads["net"]] for p in (plain, rough))
    for (name, _), a, b in zip(plain.net.named_parameters(), got, want, strict=True):
        if "memory" in name:
            assert (a - b).norm() <= 0.06 * b.norm(), name


def test_layers_of_torsos_and_heads_are_compiled(monkeypatch, caplog):
    """With a stand-in: what torch makes of them takes half a minute, and a compiler."""
    compiled = []

    def stand_in(part):
        compiled.append(part)
        part._compiled_call_impl = part._call_impl

    monkeypatch.setattr(torch.nn.Module, "compile", stand_in)
    monkeypatch.setattr("shutil.which", lambda name: None)
    build("r2d2", learner={"compile": True})
    assert "learner.compile" in caplog.text
    assert not compiled
    monkeypatch.setattr("shutil.which", lambda name: name)
    plain, other = build("r2d2"), build("r2d2", learner={"compile": True})
    assert len(compiled) >= 6, "torso and heads of both networks"
    assert len({type(x) for x in compiled}) == 1
    sample = windows(plain)
    make.assert_same_update(plain, other, sample, sample)
    assert set(other.network_health(sample.segment)) == {"train/target_lag"}, "no hooks"


def test_a_first_update_compiles_in_one_thread():
    """torch cannot compile in two threads at once."""
    compute = Compute(compile=True, target_thread=True)
    here = threading.get_ident()
    assert compute.run_in_thread(threading.get_ident)() == here
    assert compute.run_in_thread(threading.get_ident)() != here


@CUDA
def test_the_loss_is_compiled_on_a_gpu():
    plain, other = (make.build_on("cuda", "r2d2", compile=c) for c in (False, True))
    for sample in samples_of(build("r2d2"), 2):
        want, got = plain.update(sample).priority, other.update(sample).priority
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
