"""What learning from datasets asks of the rest of a config, and of the datasets. Torch-free."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.config.reader import fail
from rlrun.errors import ConfigError
from rlrun.schema import Config


def offline(config: Config, learns: bool) -> Iterator[ConfigError]:
    """An offline run learns from a dataset, so many updates a turn."""
    name = config.policy.name
    if not learns:
        wrong, fix = f"policy {name} learns nothing from a dataset", "set pipeline=serial"
        yield fail("pipeline", "offline", wrong, "serial is allowed", fix)
    if config.learner.update_per_collect is None:
        wrong = "an offline run (pipeline=offline) collects no env steps to keep a ratio to"
        fix = "set learner=offline, or learner.replay_ratio=null learner.update_per_collect=1"
        yield fail("learner.replay_ratio", config.learner.replay_ratio, wrong, "null", fix)
    if config.bonus.name != "none":
        wrong = "novelty counts visits, an offline run (pipeline=offline) makes none"
        yield fail("bonus", config.bonus.name, wrong, "none is allowed", "set bonus=none")


def check_given(config: Config) -> None:
    """Raises ConfigError when an offline run has no dataset.

    Behind all other checks: what does not fit together is not mended by any dataset.
    """
    if config.pipeline.name == "offline" and config.buffer.load is None:
        wrong = "an offline run (pipeline=offline) has no other rows to learn from"
        allowed = "a dataset directory or minari:ID is allowed"
        fix = "set buffer.load=DIR (rlrun export RUN_DIR DIR makes one), or pipeline=serial"
        raise fail("buffer.load", None, wrong, allowed, fix)


def demonstrations(config: Config) -> Iterator[ConfigError]:
    """Demonstrations are a second replay in host memory, of rows as they were."""
    demos, buffer, none = config.buffer.demos, config.buffer, "set buffer.demos=null"
    if buffer.device != "cpu":
        wrong = f"demonstrations are kept in host memory, buffer.device is {buffer.device}"
        yield fail("buffer.demos", demos, wrong, "buffer.device=cpu is allowed", none)
    if buffer.relabel is not None:
        wrong = f"demonstrations keep their goals, buffer.relabel is {buffer.relabel}"
        yield fail("buffer.demos", demos, wrong, "buffer.relabel=null is allowed", none)
    if config.pipeline.name == "offline":
        wrong = "an offline run (pipeline=offline) collects no rows to mix them with"
        yield fail("buffer.demos", demos, wrong, "buffer.load is allowed", none)


def check_load(config: Config, where: str, obs: Any, action: Any) -> None:
    """Raises ConfigError when ``buffer.load`` does not fit the environment, or the buffer."""
    lengths = check_dataset(config, "load", where, obs, action)
    steps, capacity = sum(lengths), config.buffer.capacity
    if config.pipeline.name == "offline" and steps + len(lengths) > capacity:
        wrong = f"the dataset has {steps} steps in {len(lengths)} trajectories, the oldest lost"
        allowed = f"{steps + len(lengths)} rows hold them in one column"
        fix = f"set buffer.capacity={steps + len(lengths)} or more"
        raise fail("buffer.capacity", capacity, wrong, allowed, fix)
    if config.pipeline.name == "offline" and steps < config.learner.learning_starts:
        wrong = f"the dataset has {steps} steps, nothing would be learned"
        fix = "set learner.learning_starts=0, or load a larger dataset"
        least = config.learner.learning_starts
        raise fail("learner.learning_starts", least, wrong, f"0 to {steps} are allowed", fix)


def check_dataset(config: Config, key: str, where: str, obs: Any, action: Any) -> list[int]:
    """The lengths of a dataset's trajectories, when they fit the environment."""
    if not where.startswith("minari:") and not Path(where, "dataset.json").is_file():
        what = "has no dataset.json" if Path(where).is_dir() else "is no directory"
        fix = "make one with rlrun export RUN_DIR DATA_DIR"
        raise fail(f"buffer.{key}", where, what, "a dataset directory is allowed", fix)
    from rlrun.dataset import errors_name_key, open_source
    from rlrun.types import Spec  # torch, only now

    with errors_name_key(key):
        source = open_source(where)
        source.require(Spec(obs, action), config.collector.keep_info)
        lengths = [trajectory.steps for trajectory in source.trajectories()]
    if not lengths:
        fix = "choose another"
        raise fail(f"buffer.{key}", where, "has no steps", "a dataset with rows is allowed", fix)
    return lengths
