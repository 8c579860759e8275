"""The floor is honest: it computes what rlrun computes."""

import numpy as np
import pytest
import torch

from tests.benchmarks import collect
from tests.benchmarks.floor import DEFAULT, PEERS, make_policy, parameters, twin
from tests.benchmarks.update import same_numbers


@pytest.fixture(autouse=True)
def _one_thread():
    """Threads that wait for one another crawl where other jobs hold the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("shape", "ends"), [(DEFAULT, 4), (PEERS, 0)])
def test_floor_and_rlrun_agree(shape, ends):
    assert same_numbers(shape, ends=ends)
    policy = make_policy(shape)
    assert twin(policy, shape).parameters == parameters(policy)


def test_another_target_is_seen(monkeypatch):
    monkeypatch.setattr("tests.benchmarks.floor._rescale", lambda x: x)
    assert not same_numbers(DEFAULT)


def test_the_bare_loop_infers_what_rlrun_acts_by():
    """Same weights, same observations: the same values, so the same work is compared."""
    own, bare = collect.make(4), collect.BareLoop(4)
    net = own.policy.net
    with torch.no_grad():
        for name, module in (("encoder", net.torso.layers), ("advantage", net.advantage),
                             ("value", net.value)):  # fmt: skip
            getattr(bare.net, name).load_state_dict(module.state_dict())
        core = net.memory.core.state_dict()
        bare.cell.load_state_dict({n.removesuffix("_l0"): w for n, w in core.items()})
    bare.previous[:, 0] = 1  # one-hot of action 0
    bare.obs = own.obs.copy()
    step, state = own.actor.step, own.actor.initial_state()
    own.actor.refresh()
    first, zero = np.zeros(4, bool), np.zeros(4, np.float32)
    for _ in range(3):
        q, state = step(bare.obs, first, np.zeros(4, np.int64), zero, state)
        np.testing.assert_array_equal(bare.infer(), q.argmax(-1))
        np.testing.assert_allclose(bare.state[0].numpy(), state[0], rtol=1e-4, atol=1e-6)
