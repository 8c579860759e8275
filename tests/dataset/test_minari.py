"""Minari episodes as trajectories: of plain objects, and of a stand-in for the package."""

import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun.dataset import import_minari, open_source, pack_trajectories, read_dataset, write_dataset
from rlrun.dataset.minari import to_trajectories
from rlrun.errors import ConfigError, ResourceError, StorageError
from rlrun.types import Segment, Spec

OBS = spaces.Dict(
    {
        "goal": spaces.Box(-9, 9, (2,), np.float32),
        "parts": spaces.Tuple((spaces.Discrete(50), spaces.Box(0, 255, (2, 2, 1), np.uint8))),
    }
)
SPEC = Spec(OBS, spaces.Box(-1, 1, (2,), np.float32))


def episode(number: int, steps: int, *, ends: str = "terminated") -> SimpleNamespace:
    """Fields of minari.EpisodeData; keys in another order, dtypes wider than the space's."""
    t = np.arange(steps + 1)
    flag = np.arange(steps) == steps - 1
    return SimpleNamespace(
        id=number,
        observations={
            "parts": (t, np.full((steps + 1, 2, 2, 1), number, np.uint8)),
            "goal": np.stack([t + 0.5, np.full(steps + 1, number)], -1),
        },
        actions=np.stack([t[:-1] / 100, t[:-1] / 50], -1),
        rewards=np.arange(steps, dtype=np.float64) + number,
        terminations=flag & (ends == "terminated"),
        truncations=flag & (ends == "truncated"),
        infos={"x": np.zeros(steps + 1)},
    )


def check_episode(segment: Segment, number: int, steps: int, ends: str) -> None:
    t = torch.arange(steps + 1)
    assert list(segment.obs) == ["goal", "parts"]
    assert torch.equal(segment.obs["goal"][:, 0, 0], t + 0.5)
    assert torch.equal(segment.obs["parts"][0][:, 0], t)
    assert segment.obs["parts"][1].dtype == torch.uint8
    assert (segment.obs["parts"][1] == number).all()
    assert segment.obs["goal"].dtype == segment.action.dtype == torch.float32
    assert torch.equal(segment.reward[:, 0], (t[:-1] + number).float())
    assert segment.valid.all()
    assert segment.first[:, 0].tolist() == [True] + [False] * steps
    assert segment.terminated[:, 0].tolist() == [False] * (steps - 1) + [ends == "terminated"]
    assert segment.truncated[:, 0].tolist() == [False] * (steps - 1) + [ends != "terminated"]


CASES = [(0, 3, "terminated"), (1, 1, "truncated"), (2, 5, "neither"), (3, 1, "terminated")]


def test_episodes_become_trajectories() -> None:
    given = [episode(n, steps, ends=ends) for n, steps, ends in CASES]
    given.insert(1, episode(9, 0))
    found = list(to_trajectories(given, SPEC, "x"))
    assert [t.steps for t in found] == [steps for _, steps, _ in CASES]
    for trajectory, case in zip(found, CASES, strict=True):
        check_episode(trajectory.read(0, trajectory.steps), *case)
    middle = found[2].read(2, 4)
    assert middle.first.sum() == middle.truncated.sum() == 0
    assert middle.obs["parts"][0][:, 0].tolist() == [2, 3, 4]


def goal_short(e):
    e.observations["goal"] = e.observations["goal"][:-1]


BROKEN = [
    (goal_short, "has 6 observations for 6 steps"),
    (lambda e: setattr(e, "actions", e.actions[:-1]), "has 6 rewards but {'action': 5}"),
    (lambda e: e.rewards.__setitem__(2, np.nan), "has a reward that is not finite"),
    (lambda e: e.terminations.__setitem__(3, True), "continues after its end at step 3"),
]


@pytest.mark.parametrize(("damage", "text"), BROKEN)
def test_a_broken_episode_is_named(damage, text: str) -> None:
    damage(broken := episode(4, 6))
    found = to_trajectories([episode(0, 2), broken], SPEC, "buffer.load = minari:a/b-v0")
    next(found)
    with pytest.raises(StorageError) as caught:
        next(found)
    assert str(caught.value).startswith("buffer.load = minari:a/b-v0: episode 1: it ")
    assert text in str(caught.value)


NUMBERED = [
    (spaces.Discrete(3, start=1), [1, 3, 2], [0, 4, 10**15]),
    (spaces.Discrete(3, start=-1), [-1, 1, 0], [-2, 2]),
    (spaces.Discrete(3), [0, 2, 1], [-1, 3]),
    (spaces.MultiDiscrete([3, 2], start=[1, -1]), [[1, 0], [3, -1]], [[0, 0], [1, 1]]),
]


@pytest.mark.parametrize(("space", "actions", "outside"), NUMBERED, ids=str)
def test_actions_are_counted_from_0(space, actions, outside) -> None:
    """Minari keeps the numbering of the environment."""
    spec = Spec(OBS, space)
    given = episode(0, len(actions))
    given.actions = np.array(actions)
    (found,) = to_trajectories([given], spec, "x")
    assert found.read(0, len(actions)).action[:, 0].tolist() == (actions - space.start).tolist()
    for value in outside:
        given.actions[1] = value
        with pytest.raises(ConfigError, match=r"x: episode 0: row 1 of column 0: .*action"):
            list(to_trajectories([given], spec, "x"))


def stand_in(monkeypatch, spec: Spec = SPEC, error: Exception | None = None) -> None:
    def load_dataset(dataset_id: str):
        if error is not None:
            raise error
        given = [episode(n, steps, ends=ends) for n, steps, ends in CASES]
        return SimpleNamespace(
            observation_space=spec.obs,
            action_space=spec.action,
            iterate_episodes=lambda: iter(given),
        )

    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=load_dataset))


def test_a_file_that_lacks_an_episode_is_damaged(monkeypatch) -> None:
    def iterate_episodes():
        yield episode(0, 2)
        raise KeyError("object 'episode_1' doesn't exist")

    stand_in(monkeypatch)
    source = import_minari("a/b-v0")
    source.dataset.iterate_episodes = iterate_episodes
    with pytest.raises(StorageError, match=r"buffer.load = minari:a/b-v0: .*KeyError"):
        list(source.chunks(2, 4))


def test_a_minari_dataset_is_a_source_like_a_directory(monkeypatch, tmp_path) -> None:
    stand_in(monkeypatch)
    source = open_source("minari:a/b-v0")
    source.require(SPEC)
    with pytest.raises(ConfigError, match=r"buffer.load = minari:a/b-v0: .*action .*shape"):
        source.require(Spec(OBS, spaces.Box(-1, 1, (3,), np.float32)))
    like = Segment(
        obs={"goal": torch.zeros(1, 2, 2), "parts": (torch.zeros(1, 2, dtype=torch.long),
             torch.zeros(1, 2, 2, 2, 1, dtype=torch.uint8))},
        first=torch.zeros(1, 2, dtype=torch.bool),
        action=torch.zeros(0, 2, 2),
        reward=torch.zeros(0, 2),
        terminated=torch.zeros(0, 2, dtype=torch.bool),
        truncated=torch.zeros(0, 2, dtype=torch.bool),
        valid=torch.zeros(0, 2, dtype=torch.bool),
        states=(torch.zeros(0, 2, 7),),
    )  # fmt: skip
    chunks = list(source.chunks(2, 4, like=like))
    assert [len(c.reward) for c in chunks] == [4, 4]  # columns of 4 + 2 + 2 and 2 + 6 rows
    assert sum(int(c.valid.sum()) for c in chunks) == 10
    assert chunks[0].states[0].shape == (4, 2, 7)
    parts = pack_trajectories(source.trajectories(), 1, 100)
    write_dataset(tmp_path / "d", parts, spec=source.spec, meta=source.source, shard_rows=5)
    dataset = read_dataset(tmp_path / "d")
    dataset.require(SPEC)
    assert dataset.description["episodes"] == 4
    ends = Counter((len(e.reward), bool(e.terminated[-1])) for e in dataset.episodes())
    assert ends == Counter((steps, end == "terminated") for _, steps, end in CASES)
    for segment, case in zip(dataset.episodes(), CASES, strict=True):
        check_episode(segment, *case)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (FileNotFoundError("not found"), ConfigError, "minari download a/b-v0"),
        (ValueError("Malformed dataset ID"), ConfigError, "Malformed"),
        (ImportError("h5py is not installed"), ResourceError, "h5py .*pip install"),
        (OSError("truncated file"), StorageError, "OSError: truncated file"),
        (AssertionError(), StorageError, "AssertionError"),
    ],
)
def test_what_cannot_be_opened(monkeypatch, error, kind, text) -> None:
    stand_in(monkeypatch, error=error)
    with pytest.raises(kind, match=f"buffer.load = minari:a/b-v0: .*{text}"):
        import_minari("a/b-v0")
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ResourceError, match="pip install 'minari"):
        import_minari("a/b-v0")
