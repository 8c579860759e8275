"""What is drawn beside the picture is what the agent computes."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rlrun.acting.actor import NetActor
from rlrun.acting.reading import Reading, RecordingActor, read_outputs
from rlrun.build.plan import make_plan
from rlrun.build.policy import make_policy
from rlrun.functional.value import rescale
from rlrun.types import Tree
from rlrun.video.panels import PALETTE, STEPS, WIDTH, Panels, diverging
from tests.compose import config

POLICIES = [
    ("policy=r2d2", "env=cartpole", "Q"),
    ("policy=dqn", "env=cartpole", "Q"),
    ("policy=ppo", "env=cartpole", "probability"),
    ("policy=ppo", "env=pendulum", "mean"),
    ("policy=sac", "env=pendulum", "mean"),
    ("policy=qmix", "env=relay", "Q"),
    ("policy=random", "env=cartpole", ""),
]


@pytest.mark.parametrize(("policy", "env", "kind"), POLICIES)
def test_a_reading_is_of_the_first_environment_and_changes_no_action(
    policy: str, env: str, kind: str
) -> None:
    plan = make_plan(config(policy, env, "torso.hidden=[8]"))
    made = make_policy(plan)
    actors = [made.actor(3) for _ in range(2)]
    found: list[Reading] = []
    read = RecordingActor(actors[1], found.append)
    assert read.extras.keys() == actors[0].extras.keys()
    rng, spec = np.random.default_rng(0), plan.policy_spec
    spec.obs.seed(0)
    states: list[Tree] = [actor.initial_state() for actor in (actors[0], read)]
    shape = (3, *(spec.action.shape or ()))
    action, reward = np.zeros(shape, spec.action.dtype), np.zeros(3, np.float32)
    for t in range(4):
        samples = [spec.obs.sample() for _ in range(3)]
        obs = (
            {k: np.stack([s[k] for s in samples]) for k in samples[0]}
            if isinstance(samples[0], dict)
            else np.clip(np.stack(samples), -9, 9)
        )
        row = obs, np.full(3, t == 0), action, reward
        one, two = (
            actor.act(*row, state, explore=None)
            for actor, state in zip((actors[0], read), states, strict=True)
        )
        np.testing.assert_array_equal(one.action, two.action)
        states = [one.state, two.state]
        action, reward = one.action, rng.random(3, np.float32)
        reading = found[-1]
        assert reading.kind == kind
        np.testing.assert_array_equal(reading.action, one.action[0])
        if kind in ("Q", "probability"):
            chosen = one.action[0] if policy != "policy=qmix" else one.action[0, 0]
            assert int(reading.values.argmax()) == int(chosen)
        if kind == "mean":
            np.testing.assert_allclose(reading.values, one.action[0].ravel(), rtol=1e-6)
        if kind == "probability":
            assert reading.values.sum() == pytest.approx(1)
        if policy == "policy=r2d2":
            np.testing.assert_array_equal(reading.state, one.state[0][0])  # h, not c
            assert len(reading.state) == plan.config.memory.hidden
    assert len(found) == 4


def test_values_of_a_q_network_are_its_own() -> None:
    words = ("policy=dqn", "env=cartpole", "torso.hidden=[8]", "policy.value_rescale_eps=null")
    plan = make_plan(config(*words))
    policy, found = make_policy(plan), []
    obs = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    none = np.zeros(2)
    actor = RecordingActor(policy.actor(2), found.append)
    actor.act(obs, none > 1, none.astype(int), none.astype(np.float32), (), explore=None)
    net = policy.net  # type: ignore[attr-defined]
    with torch.no_grad():
        expected = net.q(net.torso(torch.from_numpy(obs)))[0].numpy()
    np.testing.assert_allclose(found[0].values, expected, rtol=1e-5)


def test_rescaled_values_are_scaled_back() -> None:
    """R2D2's network learns h(Q); Q is what is shown."""
    actor = make_policy(make_plan(config("policy=r2d2", "env=cartpole"))).actor(1)
    q = torch.tensor([[30.0, -2.0]])
    assert isinstance(actor, NetActor)
    kind, values = read_outputs(actor, rescale(q, 1e-3).numpy(), np.zeros((1, 4)))
    assert kind == "Q"
    np.testing.assert_allclose(values, q[0], rtol=1e-4)


@dataclass
class Drawn:
    """A reading of an agent with two actions and three units."""

    kind: str
    values: np.ndarray
    state: np.ndarray
    action: np.ndarray


def test_panels_show_state_values_and_reward() -> None:
    """Colours of the newest column are those of its numbers; the picture is left as it is."""
    panels, picture = Panels(), np.full((400, 300, 3), 7, np.uint8)
    states = [np.array([1.0, -1.0, 0.0]), np.array([0.5, -0.25, 1.0])]
    frames = [
        panels.beside(
            picture, episode=0, t=t, reward=t, total=t,
            reading=Drawn("Q", np.array([1.0, 2.0 - 2 * t]), state, np.array(1 - t)),
        )
        for t, state in enumerate(states)
    ]  # fmt: skip
    assert [f.shape for f in frames] == [(400, 300 + WIDTH, 3)] * 2
    for frame in frames:
        assert (frame[:, :300] == 7).all()
    heat = frames[1][:, 300:]
    cell = (WIDTH - 16) / STEPS
    for t, state in enumerate(states):
        x = round(8 + (t + 0.5) * cell)
        column = {tuple(c) for c in heat[44:140, x].tolist()}  # its panel
        assert {tuple(c) for c in diverging(state).tolist()} <= column
    last = panels.beside(picture, episode=0, t=2, reward=0.0, total=1.0, reading=None)
    assert (last[44:140] == frames[1][44:140]).all()  # nothing more was computed
    anew = panels.beside(picture, episode=1, t=0, reward=0.0, total=0.0, reading=None)
    assert (anew[60:130, 320:640] == 255).mean() > 0.9


def test_many_actions_have_one_label_that_fits() -> None:
    panels, picture = Panels(), np.zeros((84, 84, 3), np.uint8)
    reading = Drawn("Q", np.arange(18.0), np.zeros(0), np.array(17))
    frame = panels.beside(picture, episode=0, t=0, reward=0.0, total=0.0, reading=reading)
    assert frame.shape[0] == 420  # every pixel five times
    assert (frame[:, -7:] == 255).all()  # nothing leaves the panel at its right


def test_the_chosen_action_has_a_dot() -> None:
    def blots(action: int) -> list[int]:
        reading = Drawn("Q", np.array([1.0, 2.0]), np.zeros(0), np.array(action))
        picture = np.zeros((400, 400, 3), np.uint8)
        frame = Panels().beside(picture, episode=0, t=0, reward=0.0, total=0.0, reading=reading)
        return [int((frame == np.array(PALETTE[i])).all(-1).sum()) for i in (0, 1)]

    first, second = blots(0), blots(1)
    assert first[0] > second[0] + 10
    assert second[1] > first[1] + 10
