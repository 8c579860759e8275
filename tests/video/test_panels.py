"""What is drawn beside the picture are the numbers of the reading."""

from dataclasses import dataclass

import numpy as np

from rlrun.video.files import PALETTE, STEPS, WIDTH, Panels, diverging


@dataclass
class Drawn:
    """A reading of an agent with two actions and three units."""

    kind: str
    values: np.ndarray
    state: np.ndarray
    action: np.ndarray


def test_panels_show_state_values_and_reward():
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


def test_the_chosen_action_has_a_dot():
    def blots(action):
        reading = Drawn("Q", np.array([1.0, 2.0]), np.zeros(0), np.array(action))
        picture = np.zeros((400, 400, 3), np.uint8)
        frame = Panels().beside(picture, episode=0, t=0, reward=0.0, total=0.0, reading=reading)
        return [int((frame == np.array(PALETTE[i])).all(-1).sum()) for i in (0, 1)]

    first, second = blots(0), blots(1)
    assert first[0] > second[0] + 10
    assert second[1] > first[1] + 10
