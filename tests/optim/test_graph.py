"""An update as a graph: the same numbers as one by one, and clean ways back."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rlrun.build import pipeline as build
from rlrun.build.plan import make_plan
from rlrun.nets.memory.burn_in import burn_in
from rlrun.nets.torso import Stack
from rlrun.optim.compute import RECOMPILE_LIMIT, Compute
from rlrun.optim.graph import WARM_UP, CudaGraph, Result, cuda_capture
from rlrun.types import Sample, tree_map
from tests.compose import config
from tests.policy.factory import batch_of, dqn, r2d2

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
GRAPH = Compute(graph=True)
MAKE = {"dqn": dqn, "r2d2": r2d2}


class Recorder:
    """Stands in for CUDA: nothing runs at the capture; a replay reads what was captured."""

    def __init__(self, error: str | None = None) -> None:
        self.error, self.captures, self.replays = error, 0, 0
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


def samples_of(policy, count: int, batch: int = 8) -> list[Sample]:
    """Random windows of a counter stream."""
    every, g = batch_of(policy), torch.Generator().manual_seed(0)
    found = []
    for i in range(count):
        b = torch.randint(len(every.weight), (batch,), generator=g)
        time = ("obs", "first", "action", "reward", "terminated", "truncated", "valid")
        cut = {n: tree_map(lambda x, b=b: x[:, b], getattr(every.segment, n)) for n in time}
        cut |= {n: tree_map(lambda x, b=b: x[b], getattr(every.segment, n))
                for n in ("extras", "state")}  # fmt: skip
        weight = torch.rand(batch, generator=g)
        found.append(Sample(replace(every.segment, **cut), weight, b.numpy(), 10 * i))
    return found


def graphed(policy, capture=cuda_capture):
    """The policy, with its gradient step captured."""
    policy.graph = CudaGraph(policy.gradient_step, policy.device, capture=capture)
    return policy


@pytest.mark.parametrize("name", MAKE)
def test_the_same_numbers(name):
    plain, samples = MAKE[name](device="cpu"), samples_of(MAKE[name](), WARM_UP + 5)
    other, recorder = MAKE[name](device="cpu"), Recorder()
    graphed(other, recorder)
    kept = []
    for sample in samples:
        want, got = plain.update(sample), other.update(sample)
        kept.append((want, got))
    assert (recorder.captures, recorder.replays) == (1, 5)
    assert other.updates == plain.updates == len(samples)
    for want, got in kept:  # afterwards: no result is overwritten by a later update
        torch.testing.assert_close(got.priority, want.priority)
        assert list(got.metrics) == list(want.metrics)
        for key, value in want.metrics.items():
            torch.testing.assert_close(got.metrics[key], value, msg=key)
    for a, b in zip(plain.net.parameters(), other.net.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(plain.target.parameters(), other.target.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_sample_is_not_written_to():
    policy, samples = r2d2(device="cpu"), samples_of(r2d2(), WARM_UP + 3)
    graphed(policy, Recorder())
    before = [[x.clone() for x in s.segment.tensors()] for s in samples]
    for sample in samples:
        policy.update(sample)
    for sample, tensors in zip(samples, before, strict=True):
        for x, y in zip(sample.segment.tensors(), tensors, strict=True):
            assert torch.equal(x, y)


def test_other_shapes_go_one_by_one():
    policy, recorder = r2d2(device="cpu"), Recorder()
    graphed(policy, recorder)
    for sample in samples_of(r2d2(), WARM_UP + 2):
        policy.update(sample)
    (odd,) = samples_of(r2d2(), 1, batch=3)
    assert len(policy.update(odd).priority) == 3
    assert (recorder.captures, recorder.replays) == (1, 2)


def test_partial_burn_ins_go_one_by_one():
    """Their lengths are host numbers that differ from batch to batch: a graph would hold one's."""
    given = {"burnin_step": 7, "learn_unroll_len": 5, "nstep": 2}
    plain, other, recorder = r2d2(**given), r2d2(**given), Recorder()
    graphed(other, recorder)
    partial = samples_of(plain, WARM_UP + 3)
    assert all(s.segment.partial for s in partial)
    for sample in partial:
        want, got = plain.update(sample), other.update(sample)
        torch.testing.assert_close(got.priority, want.priority)
    assert recorder.captures == 0
    for sample in partial:
        other.update(replace(sample, segment=replace(sample.segment, partial=())))
    assert (recorder.captures, recorder.replays) == (1, 3)


def test_a_failed_capture_is_logged_once(caplog):
    plain, recorder = r2d2(device="cpu"), Recorder("operation not permitted\nmore")
    other = r2d2()
    graphed(other, recorder)
    samples = samples_of(r2d2(), WARM_UP + 4)
    for i, sample in enumerate(samples):
        plain.update(sample)
        other.update(sample)
        assert len(caplog.messages) == (i >= WARM_UP)
    assert "captured (operation not permitted); kernels are launched" in caplog.text
    assert recorder.captures == 1
    for a, b in zip(plain.net.parameters(), other.net.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_cpu_has_no_graphs():
    assert r2d2(device="cpu", compute=GRAPH).graph is None


class Notes:
    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


@pytest.mark.parametrize("configured", [True, False])
def test_graphs_are_unused_on_a_cpu(tmp_path, configured):
    log, line = Notes(), f"learner.cuda_graph={str(configured).lower()}"
    c = config("debug=smoke", "policy=dqn", "env=bandit", line)
    build.make_pipeline(make_plan(c), tmp_path, log).close()
    assert any("learner.cuda_graph: device=cpu has none" in x for x in log.lines) == configured


@pytest.mark.parametrize(("policy", "reported"), [("dqn", True), ("c51", False)])
def test_compile_is_unused_by_a_numpy_learner(tmp_path, monkeypatch, policy, reported):
    monkeypatch.setattr(torch.nn.Module, "compile", lambda part: None)
    log, line = Notes(), "learner.compile=true"
    c = config("debug=smoke", f"policy={policy}", "env=bandit", line)
    build.make_pipeline(make_plan(c), tmp_path, log).close()
    assert any("learner.compile: plain layers learn in numpy" in x for x in log.lines) == reported


@CUDA
@pytest.mark.parametrize("name", MAKE)
def test_a_gpu_gives_the_same_numbers_as_a_graph(name):
    plain, samples = MAKE[name](device="cuda"), samples_of(MAKE[name](), WARM_UP + 20)
    other = MAKE[name](device="cuda")
    graphed(other)
    for sample in samples:
        want, got = plain.update(sample), other.update(sample)
        torch.testing.assert_close(got.priority, want.priority, rtol=1e-4, atol=1e-5)
    assert other.graph.replay is not None


@CUDA
@pytest.mark.parametrize("name", MAKE)
def test_an_update_waits_for_no_gpu(name):
    policy, samples = MAKE[name](device="cuda"), samples_of(MAKE[name](), 8)
    on = [Sample(s.segment.to(policy.device), s.weight.to(policy.device), s.key, 0)
          for s in samples]  # fmt: skip
    policy.update(on[0])  # libraries load with a sync
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for sample in [*on, *samples]:  # from the GPU and from the host
            policy.update(sample)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_partial_burn_ins_are_the_same_with_all_windows_run():
    policy = r2d2(burnin_step=7, learn_unroll_len=5, nstep=2)
    segment = batch_of(policy).segment
    assert segment.partial
    x = torch.randn(7, segment.valid.shape[1], policy.net.memory.core.input_size)
    given = (policy.net, x, segment.state, segment.valid[:7], segment.partial)
    with torch.no_grad():
        asked, dropped = (burn_in(*given, select_partial=select) for select in (True, False))
    for a, b in zip(asked, dropped, strict=True):
        torch.testing.assert_close(a, b)
    bare = burn_in(*given[:4])
    assert not torch.allclose(asked[0], bare[0]), "some windows are partial"


def test_layers_of_torsos_and_heads_are_compiled(monkeypatch, caplog):
    """With a stand-in: what torch makes of them takes half a minute, and a compiler."""
    compiled = []

    def stand_in(part):
        compiled.append(part)
        part._compiled_call_impl = part._call_impl

    monkeypatch.setattr(torch.nn.Module, "compile", stand_in)
    plain, other = r2d2(), r2d2()
    monkeypatch.setattr("shutil.which", lambda name: None)
    Compute(compile=True).prepare(other.net)
    assert "no C++ compiler" in caplog.text
    assert not compiled
    monkeypatch.setattr("shutil.which", lambda name: name)
    Compute(compile=True).prepare(other.net, other.target)
    parts = [m for n in (other.net, other.target) for m in n.modules()]
    assert compiled == [m for m in parts if isinstance(m, Stack)]
    assert len(compiled) >= 4, "torso and heads of both networks"
    for sample in samples_of(plain, 3):
        torch.testing.assert_close(other.update(sample).priority, plain.update(sample).priority)


def test_a_second_thread_is_as_lenient():
    """torch keeps these settings for each thread."""

    def read():
        from torch._dynamo import config

        return config.suppress_errors, config.recompile_limit

    assert Compute(target_thread=True, compile=True).run_in_thread(read)() == (
        True,
        RECOMPILE_LIMIT,
    )
    assert (
        Compute(target_thread=True).run_in_thread(torch.get_num_threads)()
        == torch.get_num_threads()
    )
