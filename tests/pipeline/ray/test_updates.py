"""How many updates the driver has done, and chunks that the learner takes itself (on-policy)."""

from types import SimpleNamespace

import pytest

from rlrun.pipeline.learner import RolloutLearner
from rlrun.pipeline.ray.delivery import MAX_DAMAGED
from rlrun.pipeline.ray.learning import LearnerRole
from rlrun.pipeline.ray.messages import Learned, Stored
from rlrun.pipeline.ray.pump import Lost
from rlrun.pipeline.ray.receiving import Receiver
from rlrun.pipeline.ray.remote_buffer import RemoteRollouts
from rlrun.types import Counters
from tests.pipeline.ray.test_async import ByHand
from tests.pipeline.ray.test_lost import gone, made_learner, made_roles

# -- chunks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [False, True])
def test_a_damaged_chunk_is_sent_to_the_learner_again_so_many_times(rounds, caplog):
    roles = made_roles(ByHand())
    learner = made_learner(roles, RemoteRollouts(), rounds=rounds)
    chunk = SimpleNamespace(
        collector=roles.collectors[0], info=SimpleNamespace(seq=3), payload=None
    )
    learner._send_rollouts([chunk])
    sent = roles.learner.handle.learn_rollouts.calls
    for number in range(1, MAX_DAMAGED + 2):
        assert len(sent) == number
        roles.pump.waiting[-1](([Stored(3, False, damaged=True)], None))
        assert len(sent) == number, "not at once"
        if number <= MAX_DAMAGED:
            assert learner.calls == 1, "a round is not over"
            roles.pump.timers[-1]()
    assert (len(sent), learner.calls, learner.traffic.lost) == (MAX_DAMAGED + 1, 0, 1)
    assert "chunks are lost: 3 of collector 0 (they arrived damaged 21 times)" in caplog.text


def test_a_chunk_waits_for_the_one_before_it_that_came_damaged():
    """It is not counted as damaged, and comes as soon as the other one is learned or given up."""
    roles = made_roles(ByHand())
    learner = made_learner(roles, RemoteRollouts())
    learner._take = lambda found: None
    own = roles.collectors[0]
    third, fourth = (
        SimpleNamespace(collector=own, info=SimpleNamespace(seq=seq), payload=None)
        for seq in (3, 4)
    )
    sent = roles.learner.handle.learn_rollouts.calls
    learner._send_rollouts([third])
    learner._send_rollouts([fourth])
    roles.pump.waiting[-2](([Stored(3, False, damaged=True)], None))
    for _ in range(2 * MAX_DAMAGED):  # it is early, however long that takes
        roles.pump.waiting[-1](([Stored(3, False)], None))
        roles.pump.timers[-1]()
    assert {call[2][0] for call in sent} == {3}, "since"
    roles.pump.timers[0]()
    roles.pump.waiting[-1](([Stored(4, True)], Learned(1, 1)))
    learner._resend_rollouts([fourth], 0)
    assert [call[:3] for call in sent[-2:]] == [([0], [3], [3]), ([0], [4], [4])]


def test_a_learner_takes_the_chunks_of_a_collector_in_their_order():
    """Also when those before it were learned by a process whose state is gone."""
    role = LearnerRole.__new__(LearnerRole)
    role.receiver, learned = Receiver({0: None}, lambda rows, sender: rows), []
    role.failed, role.blank = None, False
    role.receiver.unpack = lambda number, payload, corrupt: payload
    role.parts = SimpleNamespace(rollouts=SimpleNamespace(add=lambda n, x: learned.append(x)))
    role.counters, role.policy, role.running = Counters(), None, {}
    role.learner = RolloutLearner.__new__(RolloutLearner)
    role.learner.step = lambda rows, keys: 1
    role._learned = lambda done, with_weights: Learned(done, done)
    for seq, since in ((3, 3), (5, 4), (4, 4), (5, 4), (9, 9)):
        stored, found = role.learn_rollouts([0], [seq], [since], 0, False, False, seq)
        assert not stored[0].damaged
        assert (found is None) == (seq == 5 and 4 not in learned)
    assert learned == [3, 4, 5, 9]


def test_a_learner_whose_chunk_was_lost_is_not_restarted():
    roles = made_roles(ByHand())
    learner = made_learner(roles, RemoteRollouts())
    chunk = SimpleNamespace(
        collector=roles.collectors[0], info=SimpleNamespace(seq=3), payload=None
    )
    learner._send_rollouts([chunk])
    roles.pump.waiting[-1](gone())
    assert (roles.learner.restarts, learner.traffic.lost) == (0, 1)


# -- updates ---------------------------------------------------------------------------------------


def test_updates_that_a_restarted_learner_lacks_are_done_again():
    """Those since the last state that was saved, and those that were under way."""
    roles = made_roles(ByHand())
    learner = made_learner(roles)
    states = {"policy": None, "learner": {"means": None}}
    roles.ask = lambda role, method, *given: {"state": states, "frame": (0, None)}.get(method)
    learner._submit = lambda: None
    learner.flying, learner.calls = 12, 4
    learner._learned(3, 0.0, Learned(3, 3))
    learner._learned(3, 0.0, Learned(6, 3))
    learner.calls = 0
    learner.sync()
    learner.calls = 2
    learner._learned(5, 0.0, Learned(11, 5))
    learner._learned(1, 0.0, Lost(None))
    assert (learner.due, learner.counters.updates, learner.flying) == (1 + 5, 6, 0)
    learner._refill()  # lost once more, with nothing done since
    assert (learner.due, learner.counters.updates) == (6, 6)


@pytest.mark.parametrize("loaded", [False, True])
def test_updates_of_a_round_that_are_done_again_heed_a_signal(loaded):
    """As many as a lost learner had done since its last state; the rest is in the checkpoint."""
    roles = made_roles(ByHand())
    learner = made_learner(roles, rounds=True)
    roles.ask = lambda role, method, *given: {"frame": (0, None)}.get(method)
    roles.shards[0].windows, learner.unsaved = 10, 1000
    learner._refill()
    assert learner.due == 1000
    if loaded:
        learner.load_state_dict({"role": None, "rows": 0, "published": 0, "due": learner.due})
    learner._submit()
    updates = roles.learner.handle.learn.calls[0][0]
    assert 1 <= updates < 100
    learner.stop = lambda: True
    roles.pump.waiting[-1](Learned(updates, updates))
    roles.pump.run = lambda timeout: None
    learner._wait(lambda: not learner.due)
    assert (len(roles.learner.handle.learn.calls), learner.due) == (1, 1000 - updates)
    learner.stop = lambda: False
    learner._submit()
    while learner.calls:
        updates = roles.learner.handle.learn.calls[-1][0]
        roles.pump.waiting[-1](Learned(0, updates))
    assert (learner.due, learner.again) == (0, 0)
    learner.due = 500
    learner._submit()
    assert roles.learner.handle.learn.calls[-1][0] == 500, "a round is one call"


def test_nothing_more_is_learned_after_a_signal():
    """It is due in the checkpoint."""
    roles = made_roles(ByHand())
    learner = made_learner(roles)
    roles.shards[0].windows, learner.due = 10, 4
    learner.stop = lambda: True
    learner._submit()
    assert not roles.learner.handle.learn.calls
    learner.stop = lambda: False
    learner._submit()
    assert roles.learner.handle.learn.calls
