"""Damaged and forged datasets, and those of other runs: refused before a row is used."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun.dataset import open_source, read_dataset, write_dataset
from rlrun.dataset.format import DESCRIPTION_FILE, INDEX_FILE, STATES_FILE
from rlrun.errors import ConfigError, StorageError
from rlrun.run.files import seal, unseal
from rlrun.run.tensors import read_tensors, write_tensors
from rlrun.types import Segment, Spec, tree_map
from tests.dataset.make import SPEC, dress
from tests.env.presets import assert_names
from tests.reference.streams import make_stream, part

FILES = [
    "data-00000.safetensors",
    "data-00002.safetensors",
    INDEX_FILE,
    STATES_FILE,
    DESCRIPTION_FILE,
]


def use(path: Path) -> int:
    return sum(int(c.valid.sum()) for c in read_dataset(path).chunks(2, 8))


@pytest.mark.parametrize("name", FILES)
def test_damage_is_found_before_a_row_is_used(made: Path, name: str) -> None:
    assert use(made) == 80
    path = made / name
    content = path.read_bytes()
    for at in range(0, len(content), 97):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=name) as caught:
            use(made)
    assert caught.value.exit_code == 6
    assert str(caught.value).startswith(f"buffer.load = {made}: ")
    for shorter in (b"", content[:-1], content[: len(content) // 2], content + b"\0"):
        path.write_bytes(shorter)
        with pytest.raises(StorageError, match=name):
            use(made)
    path.unlink()
    missing = ConfigError if name == DESCRIPTION_FILE else StorageError
    with pytest.raises(missing, match=name):
        use(made)
    path.write_bytes(content)
    assert use(made) == 80


def test_no_dataset_there(made: Path) -> None:
    for path in (made / "no", made.parent):
        with pytest.raises(ConfigError, match=rf"buffer.load = {path}: .* rlrun export"):
            open_source(str(path))
    with pytest.raises(ConfigError, match=INDEX_FILE):
        read_dataset(made / INDEX_FILE)
    assert open_source(str(made)).steps == 80


@pytest.mark.parametrize(
    ("obs", "action", "words"),
    [
        (spaces.Box(-1, np.inf, (4,), np.float32), SPEC.action, "observation shape [3]"),
        (spaces.Box(-1, 1, (3,), np.float32), SPEC.action, 'observation high "inf" 1.0'),
        (spaces.Box(0, 255, (3,), np.uint8), SPEC.action, 'observation dtype "float32" "uint8"'),
        (SPEC.obs, spaces.Discrete(77), "action n 10 77"),
        (SPEC.obs, spaces.Discrete(10, start=88), "action start 0 88"),
        (spaces.Dict({"a": SPEC.obs}), SPEC.action, "observation"),
    ],
)
def test_other_spaces_are_refused(made: Path, obs, action, words: str) -> None:
    dataset = read_dataset(made)
    dataset.require(SPEC)
    with pytest.raises(ConfigError) as caught:
        dataset.require(Spec(obs, action))
    assert_names(str(caught.value), f"{made} {words}")
    assert "\n" not in str(caught.value)


def test_nested_spaces(tmp_path: Path) -> None:
    def spec(side: int, n: int) -> Spec:
        low = np.array([0.0, -np.inf, -1.5], np.float32)
        parts = (spaces.MultiBinary(3), spaces.MultiDiscrete([n, 2]), spaces.Box(low, 9, (3,)))
        image = spaces.Box(0, 255, (side, side, 3), np.uint8)
        return Spec(spaces.Dict({"i": image, "t": spaces.Tuple(parts)}), SPEC.action)

    segment = make_stream([[3]], [[True]], 9).segment
    parts = [np.zeros((10, 1, *s.shape), s.dtype) for s in spec(84, 5).obs["t"].spaces]
    obs = {"i": torch.zeros(10, 1, 84, 84, 3, dtype=torch.uint8), "t": tuple(parts)}
    segment = replace(segment, obs=tree_map(torch.as_tensor, obs))
    write_dataset(tmp_path / "d", [segment], spec=spec(84, 5), meta={}, shard_rows=9)
    dataset = read_dataset(tmp_path / "d")
    dataset.require(spec(84, 5))
    with pytest.raises(ConfigError, match=r"observation.* i .*\[84, 84, 3\].*\[64"):
        dataset.require(spec(64, 5))
    with pytest.raises(ConfigError, match=r"observation.* t "):
        dataset.require(spec(84, 6))
    odd = Spec(spaces.Text(4), SPEC.action)
    with pytest.raises(ConfigError, match="observation"):
        dataset.require(odd)


def test_fields_must_be_those_of_the_run(tmp_path: Path, caplog) -> None:
    segment = dress(make_stream([[3]], [[True]], 9).segment, "nested")
    path = tmp_path / "d"
    states = (np.array([0]), np.array([0]), (np.ones((1, 2), np.float32),))
    write_dataset(path, [segment], spec=SPEC, meta={}, shard_rows=4, states=states)
    dataset = read_dataset(path)

    def refused(like: Segment) -> str:
        with pytest.raises(ConfigError, match=str(path)) as caught:
            next(dataset.chunks(1, 4, like=like))
        return str(caught.value)

    example = part(segment, 0, 0)
    assert set(next(dataset.chunks(1, 4, like=example)).extras) == {"log_prob", "a/b"}
    assert next(dataset.chunks(1, 4, like=replace(example, extras={}))).extras == {}
    more = {**example.extras, "speed": example.reward}
    assert_names(refused(replace(example, extras=more)), "speed collector.keep_info log_prob a/b")
    assert_names(refused(replace(example, action=example.action.int())), "action int64 int32")
    assert_names(refused(replace(example, obs=segment.obs["z"][0][:1])), "obs missing")
    fewer = {k: v for k, v in example.obs.items() if k != "a"}
    assert "obs/a/b" in refused(replace(example, obs=fewer))
    # states: the run's shapes, the dataset's where they fit
    assert next(dataset.chunks(1, 4, like=example)).states[0][0, 0].tolist() == [1, 1]
    assert next(dataset.chunks(1, 4, like=replace(example, states=()))).states == ()
    caplog.set_level("INFO")
    wide = next(dataset.chunks(1, 4, like=replace(example, states=(torch.zeros(0, 1, 5),))))
    assert wide.states[0].shape == (4, 1, 5)
    assert not wide.states[0].any()
    assert "states" in caplog.text
    write_dataset(tmp_path / "without", [segment], spec=SPEC, meta={}, shard_rows=4)
    plain = next(read_dataset(tmp_path / "without").chunks(1, 4, like=example))
    assert plain.states[0].shape == (4, 1, 2)
    assert next(read_dataset(tmp_path / "without").chunks(1, 4)).states == ()


def reseal(made: Path, **changed: object) -> None:
    fields = unseal((made / DESCRIPTION_FILE).read_bytes()) | changed
    (made / DESCRIPTION_FILE).write_bytes(seal(fields))


def replace_shards(made: Path, edit: Callable[[dict[str, Any]], None], name: str = "data-") -> None:
    """Edit every shard, or other files; the description has their new hashes."""
    fields = unseal((made / DESCRIPTION_FILE).read_bytes())
    for entry in [*fields["shards"], fields["index"], fields["states"]]:
        if entry["file"].startswith(name):
            arrays = {n: x.numpy().copy() for n, x in read_tensors(made / entry["file"]).items()}
            edit(arrays)
            (made / entry["file"]).unlink()
            digest, size = write_tensors(made / entry["file"], arrays, {})
            entry |= {"sha256": digest, "bytes": size}
    reseal(made, **fields)


def read_all(made: Path) -> list[Segment]:
    dataset = read_dataset(made)
    dataset.require(SPEC)
    return list(dataset.chunks(2, 8))


def test_files_say_which_numbering_they_hold(made: Path) -> None:
    """Another writer may number Discrete actions as its environment does."""
    assert unseal((made / DESCRIPTION_FILE).read_bytes())["action_start"] == 0
    before = [c.action for c in read_all(made)]
    replace_shards(made, lambda arrays: np.add(arrays["action"], 7, out=arrays["action"]))
    with pytest.raises(ConfigError, match=r"data-0000.* action .*1[0-9]; .*\[0, 9\]"):
        read_all(made)
    reseal(made, action_start=7)
    for old, new in zip(before, read_all(made), strict=True):
        assert torch.equal(old, new.action)


def put(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(arrays: dict[str, Any]) -> None:
        arrays[name][...] = value

    return edit


def cast(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, Any]], None]:
    def edit(arrays: dict[str, Any]) -> None:
        arrays[name] = change(arrays[name])

    return edit


SHARDS = {
    "action 1e15": put("action", 10**15), "action -1": put("action", -1),
    "nan obs": put("obs", np.nan), "nan reward": put("reward", np.nan),
    "inf reward": put("reward", np.inf),
    **{f"no {n}": lambda a, n=n: a.pop(n) for n in ("reward", "action", "valid", "obs")},
    **{f"{n} half": cast(n, lambda x: x.astype(np.float16)) for n in ("reward", "action", "valid")},
    **{f"{n} short": cast(n, lambda x: x[:-1]) for n in ("reward", "action", "terminated", "obs")},
    **{f"{n} deep": cast(n, lambda x: x[..., None]) for n in ("reward", "action", "valid")},
    **{f"{n} wide": cast(n, lambda x: np.repeat(x, 2, 1)) for n in ("reward", "obs")},
}  # fmt: skip


INDEX = {
    **{f"{n} {v}": put(n, v) for n in ("row", "column", "steps") for v in (-1, 10**15, 2**62)},
    **{f"no {n}": lambda a, n=n: a.pop(n) for n in ("row", "steps")},
    **{f"{n} float": cast(n, lambda x: x.astype(np.float32)) for n in ("row", "column")},
    "short": cast("row", lambda x: x[:-1]), "deep": cast("row", lambda x: x[:, None]),
}  # fmt: skip


STATES = {
    **{f"{n} {v}": put(n, v) for n in ("row", "column") for v in (-1, 10**15)},
    "short": cast("states/0", lambda x: x[:-1]), "unsorted": cast("column", lambda x: x[::-1]),
    "no leaf": lambda a: a.pop("states/0"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "edits"), [("data", SHARDS), ("index", INDEX),
                                              ("states", STATES)])  # fmt: skip
def test_sealed_files_of_wrong_content_are_refused(made: Path, name: str, edits: Any) -> None:
    whole = {path: path.read_bytes() for path in made.iterdir()}
    for edit in edits.values():
        replace_shards(made, edit, name)
        with pytest.raises((ConfigError, StorageError), match=f"buffer.load = .*{name}.*; "):
            read_all(made)
        for path, content in whole.items():
            path.write_bytes(content)
    assert read_all(made)


WRONG: list[Any] = [None, -1, 0, 10**30, 1.5, "x", [], {}, [1], {"a": 1}, True, [{}]]


OPTIONAL = {  # harmless, or not read
    "rlrun": WRONG, "source": [{}, {"a": 1}], "return": [None], "states": [None],
    "length_mean": WRONG, "format": [True],
    "episodes": [0], "steps": [0], "trajectories": [0], "action_start": [0], "sha256": WRONG,
}  # fmt: skip


def test_sealed_descriptions_of_wrong_content_are_refused(made: Path) -> None:
    whole = (made / DESCRIPTION_FILE).read_bytes()
    fields = unseal(whole)
    first = fields["shards"][0]
    deep: Any = "obs"
    for _ in range(100):
        deep = {"tuple": [deep]}
    cases = [(name, value) for name in fields for value in WRONG]
    cases += [("shards", [{**first, key: v}]) for key in first for v in WRONG if v != first[key]]
    cases += [("obs", {"dict": [["x", "obs"]]}), ("obs", deep), ("obs", "reward"), ("obs", "nope")]
    cases += [("spaces", {"obs": {}, "action": {}}), ("fields", {**fields["fields"], "obs": {}})]
    cases += [("spaces", {"obs": 1, "action": {}}), ("shards", [first] * len(fields["shards"]))]
    field = {"dtype": "int8", "shape": []}
    cases += [("fields", {**fields["fields"], name: field}) for name in ("valid", "obs", "reward")]
    cases += [("return", {"mean": "x", "std": 1}), ("rows", fields["rows"] + 1)]
    for name, value in cases:
        if any(value is v or value == v for v in OPTIONAL.get(name, [])):
            continue
        (made / DESCRIPTION_FILE).write_bytes(seal({**fields, name: value}))
        try:
            read_all(made)
        except (ConfigError, StorageError):
            continue
        pytest.fail(f"{name} = {value} was read")
    (made / DESCRIPTION_FILE).write_bytes(whole)
    assert read_all(made)


# -- of a stranger, hashes right: nothing outside of the directory is read -------------------------

ELSEWHERE = ("../data/index.safetensors", "/etc/hostname", "/dev/zero", "", "a\0b", "x" * 5000)


@pytest.mark.parametrize("part", ["shards", "index"])
def test_files_elsewhere(made: Path, part: str) -> None:
    path = made / DESCRIPTION_FILE
    fields = unseal(path.read_bytes())
    fields.pop("sha256", None)
    entry = fields[part][0] if part == "shards" else fields[part]
    for name in ELSEWHERE:
        entry["file"] = name
        path.write_bytes(seal(fields))
        with pytest.raises((ConfigError, StorageError)) as e:
            list(read_dataset(made).chunks(2, 8))
        assert "\n" not in str(e.value)


def test_deep_json_and_links(made: Path) -> None:
    path = made / DESCRIPTION_FILE
    path.write_text("[" * 100_000)
    with pytest.raises(StorageError):
        read_dataset(made)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(StorageError):
        read_dataset(made)
