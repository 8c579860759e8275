"""RND: equality with loops, padding, inputs of the policy, kinds of observations."""

import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun.errors import NumericError
from rlrun.functional.rows import network_inputs
from rlrun.pipeline.bonus import RND
from rlrun.schema import ImageAndVectorConfig, RNDConfig, ScheduleConfig, TorsoConfig
from rlrun.types import Chunk, Sample, Segment, tree_leaves
from tests.buffer.make import constant
from tests.pipeline.make import TINY, go
from tests.policy.make import DISCRETE, build, windows
from tests.reference import novelty as naive
from tests.reference.streams import make_stream, part

FIELDS = {
    "name": "rnd", "coefficient": constant(2.0), "features": 6, "hidden": (8,),
    "predictor_hidden": (5,), "lr": constant(1e-2), "batch_size": 4,
    "gamma": 0.9,
}  # fmt: skip
MLP = TorsoConfig("mlp", (3,), "tanh", False)


def rnd(*, space=DISCRETE.obs, torso=MLP, stacked=False, columns=2, seed=0, **changes) -> RND:
    return RND(
        RNDConfig(**(FIELDS | changes)), torso, space=space, stacked=stacked, columns=columns,
        seed=seed, total_steps=1000, device=torch.device("cpu"),
    )  # fmt: skip


def stream(rows=40) -> Segment:
    """Two columns with terminated and truncated episodes."""
    return make_stream([[4, 9, 1], [6, 13]], [[True, False], [False, True]], rows).segment


def sample_of(segment: Segment, env_steps=0) -> Sample:
    columns = segment.reward.shape[1]
    return Sample(segment, torch.ones(columns), np.arange(columns), env_steps)


def feed(bonus: RND, segment: Segment, pieces: list[int], *, learn=True) -> None:
    row = 0
    for n in pieces:
        bonus.observe(Chunk.of(part(segment, row, row + n)))
        if learn:
            bonus.update(0)
        row += n


def test_a_chunk_without_a_row_with_a_bonus():
    """Every step terminates: no statistics, no learning."""
    segment = stream(4)
    over = torch.ones_like(segment.terminated)
    bonus = rnd()
    bonus.observe(Chunk.of(replace(segment, terminated=over, truncated=~over)))
    bonus.update(0)
    assert bonus.obs.count == 0
    assert bonus.metrics() == {}


def test_statistics_and_rewards_equal_naive_loops():
    """Statistics of three chunks, then the rewards of a sample."""
    segment, bonus = stream(), rnd()
    rows = [(t, b) for t in range(40) for b in range(2)]
    moved = {
        (t, b): segment.valid[t, b].item() and not segment.terminated[t, b].item() for t, b in rows
    }
    seen: list[list[float]] = []
    novelty = [[0.0, 0.0] for _ in range(40)]

    def novelty_of(obs):
        white = []
        for k in range(3):
            mean, var = naive.moments([x[k] for x in seen])
            white.append(max(-5.0, min(5.0, (obs[k] - mean) / math.sqrt(var + 1e-8))))
        row = torch.tensor([white])
        with torch.no_grad():
            prediction, target = bonus.predictor(row)[0], bonus.target(row)[0]
        return naive.error(prediction.tolist(), target.tolist())

    start, sums, carried = 0, [], [0.0, 0.0]
    for n in (13, 1, 26):
        bonus.observe(Chunk.of(part(segment, start, start + n)))
        here = [(t, b) for t, b in rows if start <= t < start + n]
        seen += [segment.obs[t + 1, b].tolist() for t, b in here if moved[t, b]]
        for t, b in here:
            if moved[t, b]:
                novelty[t][b] = novelty_of(segment.obs[t + 1, b].tolist())
        valid = segment.valid[start : start + n].tolist()
        chunk, carried = naive.discounted(novelty[start : start + n], valid, carried, 0.9)
        sums += [chunk[t][b] for t in range(n) for b in range(2) if valid[t][b]]
        start += n
    scale = math.sqrt(naive.moments(sums)[1])
    assert bonus.sums.count == int(segment.valid.sum())
    out = bonus.add_to(sample_of(segment)).segment
    for t, b in rows:
        added = novelty_of(segment.obs[t + 1, b].tolist()) * 2 / scale if moved[t, b] else 0.0
        want = segment.reward[t, b].item() + added
        assert out.reward[t, b].item() == pytest.approx(want, rel=1e-4, abs=1e-5), (t, b)
    assert any(moved[t, b] and segment.truncated[t, b] for t, b in rows), "the end row is paid"
    found = bonus.metrics()
    added = (out.reward - segment.reward)[torch.tensor([moved[r] for r in rows]).reshape(40, 2)]
    assert found["train/bonus_mean"] == pytest.approx(added.mean().item(), rel=1e-4)
    assert found["train/bonus_scale"] == pytest.approx(scale, rel=1e-4)
    assert found["train/bonus_coefficient"] == 2


@pytest.mark.parametrize("value", [math.nan, 1e9])
def test_the_observation_after_a_termination_is_not_read(value):
    segment = stream()
    dead = torch.cat([torch.zeros_like(segment.valid[:1]), segment.valid & ~segment.terminated])
    dead = ~(dead | torch.cat([segment.valid, dead[-1:]]))  # neither stepped from nor paid for
    assert dead.any()
    wild = replace(
        segment,
        obs=torch.where(dead[..., None], value, segment.obs),
        reward=torch.where(segment.valid, segment.reward, value),
    )
    results = []
    for rows in (segment, wild):
        bonus = rnd()
        feed(bonus, rows, [13, 1, 26])
        reward = bonus.add_to(sample_of(rows)).segment.reward
        results.append((torch.where(segment.valid, reward, 0), bonus.state_dict()))
    (one, state), (two, other) = results
    assert torch.equal(one, two)
    for a, b in zip(tree_leaves(state), tree_leaves(other), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_layer_normalisation_of_the_policy_is_not_taken_over():
    """Its gains, zeroed as biases are, once made every feature and bonus 0 (policy=pqn)."""
    segment, rewards = stream(), []
    for torso in (MLP, replace(MLP, layer_norm=True)):
        bonus = rnd(torso=torso)
        feed(bonus, segment, [20, 20])
        rewards.append(bonus.add_to(sample_of(segment)).segment.reward)
    torch.testing.assert_close(*rewards, equal_nan=True)
    assert not torch.equal(rewards[0][segment.valid], segment.reward[segment.valid])


def test_every_row_is_learned_once():
    segment, bonus = stream(), rnd()
    pieces = [13, 1, 26]
    feed(bonus, segment, pieces)
    paid, steps, row = segment.valid & ~segment.terminated, 0, 0
    for n in pieces:
        steps += -(-int(paid[row : row + n].sum()) // FIELDS["batch_size"])
        row += n
    assert bonus.optimiser.steps[0].item() == steps
    bonus.update(0)
    assert bonus.optimiser.steps[0].item() == steps, "nothing is left of the last chunk"


def test_no_bonus_before_the_first_chunk():
    sample = sample_of(stream())
    assert rnd().add_to(sample) is sample


def test_the_coefficient_follows_its_schedule():
    falling = ScheduleConfig("linear", 4.0, 0.0, 100, None)
    bonus, segment = rnd(coefficient=falling), stream()
    feed(bonus, segment, [40])
    added = [
        (bonus.add_to(sample_of(segment, clock)).segment.reward - segment.reward).sum().item()
        for clock in (0, 50, 100)
    ]
    assert added[0] == pytest.approx(2 * added[1], rel=1e-3)
    assert added[0] > 0
    assert added[2] == 0


def test_previous_rewards_stay_without_the_bonus():
    """They are inputs of R2D2, which acted on rewards without the bonus."""
    policy = build("r2d2")
    sample, bonus = windows(policy), rnd()
    feed(bonus, stream(), [40])
    shaped = bonus.add_to(sample)
    valid = sample.segment.valid
    assert (shaped.segment.reward > sample.segment.reward)[valid].float().mean() > 0.5
    for one, two in zip(
        network_inputs(sample.segment, scale=1.0, clip=None),
        network_inputs(shaped.segment, scale=1.0, clip=None),
        strict=True,
    ):
        assert torch.equal(one, two)
    update = policy.update(shaped)
    assert torch.isfinite(update.metrics["train/loss"])
    assert shaped.segment.state is sample.segment.state


def test_the_global_generator_is_not_used():
    before = torch.random.get_rng_state()
    feed(rnd(), stream(), [40])
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_value_that_is_not_finite_ends_the_run():
    segment, bonus = stream(), rnd()
    with pytest.raises(NumericError, match=r"train/grad_norm = nan .*bonus\.lr"):
        feed(bonus, replace(segment, obs=segment.obs * math.inf), [40])
    bonus.totals = {"train/bonus_loss": [torch.tensor(math.nan), torch.ones(())]}
    with pytest.raises(NumericError, match=r"train/bonus_loss = nan: .*bonus\.lr"):
        bonus.metrics()


GREY = gym.spaces.Box(0, 255, (40, 44), np.uint8)
COLOUR = gym.spaces.Box(0, 255, (36, 38, 3), np.uint8)
CNN = TorsoConfig("nature_cnn", (3,), "relu", False)
BOTH = ImageAndVectorConfig("image_and_vector", (3,), "relu", False, (4,))
KINDS = {
    "box": (DISCRETE.obs, MLP),
    "discrete": (gym.spaces.Discrete(7, start=2), MLP),
    "dict": (gym.spaces.Dict({"a": gym.spaces.MultiDiscrete([2, 3]), "b": DISCRETE.obs}), MLP),
    "grey frame": (GREY, CNN),
    "colour frame": (COLOUR, CNN),
    "flat image": (GREY, MLP),
    "images in a dict": (gym.spaces.Dict({"agents": GREY}), CNN),
    "image and vector": (gym.spaces.Dict({"image": COLOUR, "vector": DISCRETE.obs}), BOTH),
}


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_observations(kind, stacked):
    """A chunk contains the newest frame of a stack: with k = 3 the bonus is that without stacks."""
    space, torso = KINDS[kind]
    if stacked and not isinstance(space, gym.spaces.Box):
        return  # no stacks of these
    rows, columns = 12, 2
    batch = gym.vector.utils.batch_space(gym.vector.utils.batch_space(space, columns), rows + 1)
    batch.seed(3)
    obs = batch.sample()
    flags = np.zeros((rows, columns), bool)
    first = np.zeros((rows + 1, columns), bool)
    chunk = Chunk(
        obs, first, flags.astype(np.int64), flags.astype(np.float32), flags, flags, ~flags
    )
    bonus = rnd(space=space, torso=torso, stacked=stacked)
    feed_chunk = [bonus.observe, lambda c: bonus.update(0)]
    for step in feed_chunk:
        step(chunk)
    segment = chunk.segment()
    if stacked:
        other = torch.flip(segment.obs, [0])
        segment = replace(segment, obs=torch.stack([other, other, segment.obs], 2))
    plain = rnd(space=space, torso=torso)
    plain.load_state_dict(bonus.state_dict())
    reward = bonus.add_to(sample_of(segment)).segment.reward
    assert torch.equal(reward, plain.add_to(sample_of(chunk.segment())).segment.reward)
    assert (reward > 0).all()
    assert torch.isfinite(reward).all()


# -- whole runs ------------------------------------------------------------------------------------


def test_a_zero_coefficient_changes_no_weight(tmp_path):
    """No other component's generator is used, and rewards keep their bits."""
    words = {"none": "bonus=none", "zero": "bonus=rnd bonus.coefficient=0", "paid": "bonus=rnd"}
    weights = {}
    for name, more in words.items():
        go(tmp_path / name, "policy=dqn", "env=cartpole", *TINY, *more.split())
        weights[name] = (tmp_path / name / "checkpoints/last.safetensors").read_bytes()
    assert weights["none"] == weights["zero"] != weights["paid"]
