"""Minari datasets as trajectories. Requires the optional package minari."""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from rlrun.dataset.format import require_spaces, spec_json
from rlrun.dataset.packing import Trajectory, TrajectorySource
from rlrun.env.contract import STORABLE, unsupported_space
from rlrun.errors import ConfigError, ResourceError, StorageError
from rlrun.functional.recorded import RowSpaces, from_zero
from rlrun.run.checkpoint import UNREADABLE
from rlrun.types import Segment, Spec, Tree, tree_leaves, tree_map


def import_minari(dataset_id: str, key: str = "buffer.load") -> "MinariDataset":
    """Open the local Minari dataset ``dataset_id``. Nothing is downloaded. ``key``: in errors.

    Raises: ConfigError if the dataset is missing or its spaces have parts that cannot be stored as
    arrays, ResourceError if a package is missing, StorageError if the dataset is damaged.
    """
    prefix = f"{key} = minari:{dataset_id}"
    install = "install it: pip install 'minari[hdf5,arrow]' pillow"
    try:
        import minari
    except ImportError as e:
        need = "the package minari is needed to read Minari datasets"
        raise ResourceError(f"{prefix}: it is not installed; {need}; {install}") from e
    try:
        dataset = minari.load_dataset(dataset_id)
        return MinariDataset(dataset, dataset_id, prefix)
    except ImportError as e:
        raise ResourceError(f"{prefix}: {e}; minari needs it for this dataset; {install}") from e
    except (FileNotFoundError, ValueError) as e:
        allowed = "a dataset of `minari list local` is allowed"
        fix = f"get it with `minari download {dataset_id}`"
        raise ConfigError(f"{prefix}: cannot be opened ({e}); {allowed}; {fix}") from e
    except UNREADABLE as e:
        raise _damaged_error(prefix, e) from e


def _damaged_error(prefix: str, error: Exception) -> StorageError:
    return StorageError(
        f"{prefix}: is damaged ({type(error).__name__}: {' '.join(str(error).split())[:200]}); a "
        "dataset must be as Minari wrote it; download it again, or use another"
    )


class MinariDataset(TrajectorySource):
    """A Minari dataset as a source of trajectories, one per episode."""

    def __init__(self, dataset: Any, dataset_id: str, prefix: str) -> None:
        """Wrap ``dataset`` (observation_space, action_space, iterate_episodes())."""
        self.dataset, self.prefix = dataset, prefix
        self.spec = Spec(dataset.observation_space, dataset.action_space)
        violation = unsupported_space(self.spec.obs)
        if violation is None and not isinstance(self.spec.action, STORABLE):
            violation = f"action space is {self.spec.action}"
        if violation:
            allowed = "Box, Discrete, MultiDiscrete, MultiBinary (observations: or Dict, Tuple)"
            raise ConfigError(f"{self.prefix}: {violation}; {allowed}; choose another dataset")
        self.source: dict[str, Any] = {"minari": dataset_id}

    def require(self, spec: Spec, extras: Collection[str] = ()) -> None:
        """Raise ConfigError unless the spaces equal ``spec`` and ``extras`` is empty."""
        require_spaces(spec_json(self.spec), spec, self.prefix)
        if extras:
            raise ConfigError(
                f"{self.prefix}: it has no {', '.join(sorted(extras))} (collector.keep_info); "
                "allowed is none; set collector.keep_info=[]"
            )

    def trajectories(self) -> Iterator[Trajectory]:
        """Yield every episode with steps, in the dataset's order, without infos.

        Discrete actions are counted from 0.

        Raises: ConfigError for a value outside its space, StorageError for an episode that cannot
        be read or violates Minari's format otherwise.
        """
        try:
            yield from to_trajectories(self.dataset.iterate_episodes(), self.spec, self.prefix)
        except UNREADABLE as e:
            raise _damaged_error(self.prefix, e) from e


def to_trajectories(episodes: Iterable[Any], spec: Spec, prefix: str) -> Iterator[Trajectory]:
    """Yield the trajectories of episodes with Minari's fields.

    ``observations`` have T + 1 entries (a tree for Dict and Tuple spaces), ``actions``,
    ``rewards``, ``terminations`` and ``truncations`` T. Arrays are cast to the dtypes of ``spec``,
    rewards to float32. An episode whose last step has neither flag is truncated there. Discrete
    actions, which Minari keeps in the environment's numbering, are counted from 0.
    """
    row_spaces = RowSpaces(spec.obs, spec.action, masked=True)
    for number, episode in enumerate(episodes):
        if len(episode.rewards):
            yield _trajectory(episode, row_spaces, f"{prefix}: episode {number}")


def _trajectory(episode: Any, spec: RowSpaces, prefix: str) -> Trajectory:
    steps, fix = len(episode.rewards), "repair or remove the episode"
    try:
        obs = _as_space(episode.observations, spec.obs)
        action = _cast(from_zero(spec.action, episode.actions), spec.action)
        fields = {
            "action": action,
            "reward": np.asarray(episode.rewards, np.float32),
            "terminated": np.asarray(episode.terminations, bool),
            "truncated": np.array(episode.truncations, bool),
        }
        violation = _format_violation(obs, fields, steps)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as e:
        violation = f"its arrays are not in its spaces ({' '.join(str(e).split())[:200]})"
    if violation is not None:
        allowed = f"{steps} steps, {steps + 1} observations, an end at the last step only"
        raise StorageError(f"{prefix}: {violation}; a Minari episode has {allowed}; {fix}")
    columns = [tree_map(lambda x: x[:, None], x) for x in (obs, action, fields["terminated"])]
    wrong = spec.violation(columns[0], columns[1], np.ones_like(columns[2]))
    if wrong is not None:
        allowed = "a dataset must hold values of its spaces"
        raise ConfigError(f"{prefix}: {wrong}; {allowed}; {fix}")
    fields["truncated"][-1] |= not fields["terminated"][-1]
    return Trajectory(steps, partial(_read, obs, fields))


def _format_violation(obs: Tree, fields: dict[str, np.ndarray], steps: int) -> str | None:
    """Describe how an episode violates the format, or return None."""
    lengths = {name: len(x) for name, x in fields.items() if len(x) != steps}
    if lengths:
        return f"it has {steps} rewards but {lengths}"
    count = next((len(x) for x in tree_leaves(obs) if len(x) != steps + 1), None)
    if count is not None:
        return f"it has {count} observations for {steps} steps"
    if not np.isfinite(fields["reward"]).all():
        return "it has a reward that is not finite"
    early = np.flatnonzero((fields["terminated"] | fields["truncated"])[:-1])
    return f"it continues after its end at step {early[0]}" if len(early) else None


def _cast(value: Any, space: gym.Space[Any]) -> np.ndarray:
    """Return ``value`` [*, *shape] in the dtype of ``space``.

    Raises: ValueError if that changes a value.
    """
    array = np.asarray(value)
    with np.errstate(invalid="ignore", over="ignore"):
        cast: np.ndarray = array.astype(space.dtype)
    if array.shape[1:] != (space.shape or ()):
        raise ValueError(f"shape {list(array.shape[1:])} for {space}")
    if cast.dtype.kind in "iu" and not (cast == array).all():
        raise ValueError(f"{array.dtype} {array[cast != array].flat[0]} for {space}")
    return cast


def _as_space(value: Any, space: gym.Space[Any]) -> Tree:
    """Return observations in the key order and dtypes of ``space``."""
    if isinstance(space, spaces.Dict):
        return {key: _as_space(value[key], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_as_space(v, part) for v, part in zip(value, space.spaces, strict=True))
    return _cast(value, space)


def _read(obs: Tree, fields: dict[str, np.ndarray], start: int, stop: int) -> Segment:
    """Return steps [start, stop) of an episode in memory (``Trajectory.read``)."""

    def rows(x: np.ndarray, end: int = stop) -> torch.Tensor:
        return torch.from_numpy(np.array(x[start:end, None]))

    terminated = rows(fields["terminated"])
    first = torch.zeros(stop - start + 1, 1, dtype=torch.bool)
    first[0] = start == 0
    return Segment(
        obs=tree_map(lambda x: rows(x, stop + 1), obs),
        first=first,
        action=rows(fields["action"]),
        reward=rows(fields["reward"]),
        terminated=terminated,
        truncated=rows(fields["truncated"]),
        valid=torch.ones_like(terminated),
    )
