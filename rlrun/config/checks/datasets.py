"""Checks of offline learning, demonstrations and datasets. Torch-free."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlrun.config.config_errors import config_error
from rlrun.errors import ConfigError
from rlrun.schema import Config


def offline_errors(config: Config, learns: bool) -> Iterator[ConfigError]:
    """Yield the errors of ``pipeline=offline``. ``learns``: the policy learns from windows."""
    name = config.policy.name
    if not learns:
        wrong, fix = f"policy {name} learns nothing from a dataset", "set pipeline=serial"
        yield config_error("pipeline", "offline", wrong, "serial is allowed", fix)
    if config.learner.update_per_collect is None:
        wrong = "an offline run (pipeline=offline) collects no env steps to keep a ratio to"
        fix = "set learner=offline, or learner.replay_ratio=null learner.update_per_collect=1"
        yield config_error("learner.replay_ratio", config.learner.replay_ratio, wrong, "null", fix)
    if config.bonus.name != "none":
        wrong = "novelty counts visits, an offline run (pipeline=offline) makes none"
        yield config_error("bonus", config.bonus.name, wrong, "none is allowed", "set bonus=none")


def log_prob_errors(config: Config) -> Iterator[ConfigError]:
    """Yield the error of a policy that reads the probabilities of actions, on rows without them."""
    if not config.policy.records_log_prob:
        return
    given = [f"buffer.{k}={v}" for k in ("load", "demos") if (v := getattr(config.buffer, k))]
    if given or config.pipeline.name == "offline":
        rows = given[0] if given else "pipeline=offline"
        wrong = f"it reads the probability of each action, which rows of a dataset lack ({rows})"
        fix = "set policy.trace=watkins_q_lambda, or collect all rows"
        yield config_error(
            "policy.trace", "retrace", wrong, "nstep and the three q_lambda are allowed", fix
        )


def require_dataset(config: Config) -> None:
    """Raise ConfigError when an offline run has no dataset.

    After all other checks: no dataset repairs what does not fit together.
    """
    if config.pipeline.name == "offline" and config.buffer.load is None:
        wrong = "an offline run (pipeline=offline) has no other rows to learn from"
        allowed = "a dataset directory or minari:ID is allowed"
        fix = "set buffer.load=DIR (rlrun export RUN_DIR DIR makes one), or pipeline=serial"
        raise config_error("buffer.load", None, wrong, allowed, fix)


def demonstration_errors(config: Config) -> Iterator[ConfigError]:
    """Yield the errors of ``buffer.demos``: a second replay in host memory, of unchanged rows."""
    demos, buffer, none = config.buffer.demos, config.buffer, "set buffer.demos=null"
    if buffer.device != "cpu":
        wrong = f"demonstrations are kept in host memory, buffer.device is {buffer.device}"
        yield config_error("buffer.demos", demos, wrong, "buffer.device=cpu is allowed", none)
    if buffer.relabel is not None:
        wrong = f"demonstrations keep their goals, buffer.relabel is {buffer.relabel}"
        yield config_error("buffer.demos", demos, wrong, "buffer.relabel=null is allowed", none)
    if config.pipeline.name == "offline":
        wrong = "an offline run (pipeline=offline) collects no rows to mix them with"
        yield config_error("buffer.demos", demos, wrong, "buffer.load is allowed", none)


def check_load(config: Config, source_name: str, obs: Any, action: Any) -> None:
    """Raise ConfigError when ``buffer.load`` does not fit the environment, or the buffer."""
    lengths = check_dataset(config, "load", source_name, obs, action)
    steps, capacity = sum(lengths), config.buffer.capacity
    if config.pipeline.name == "offline" and steps + len(lengths) > capacity:
        wrong = f"the dataset has {steps} steps in {len(lengths)} trajectories, the oldest lost"
        allowed = f"{steps + len(lengths)} rows hold them in one column"
        fix = f"set buffer.capacity={steps + len(lengths)} or more"
        raise config_error("buffer.capacity", capacity, wrong, allowed, fix)
    if config.pipeline.name == "offline" and steps < config.learner.learning_starts:
        wrong = f"the dataset has {steps} steps, nothing would be learned"
        fix = "set learner.learning_starts=0, or load a larger dataset"
        least = config.learner.learning_starts
        raise config_error(
            "learner.learning_starts", least, wrong, f"0 to {steps} are allowed", fix
        )


def check_dataset(config: Config, key: str, source_name: str, obs: Any, action: Any) -> list[int]:
    """The lengths of a dataset's trajectories, when they fit the environment."""
    if not source_name.startswith("minari:") and not Path(source_name, "dataset.json").is_file():
        what = "has no dataset.json" if Path(source_name).is_dir() else "is no directory"
        fix = "make one with rlrun export RUN_DIR DATA_DIR"
        raise config_error(
            f"buffer.{key}", source_name, what, "a dataset directory is allowed", fix
        )
    from rlrun.dataset import errors_name_key, open_source
    from rlrun.types import Spec  # torch, only now

    with errors_name_key(key):
        source = open_source(source_name)
        source.require(Spec(obs, action), config.collector.keep_info)
        lengths = [trajectory.steps for trajectory in source.trajectories()]
    if not lengths:
        fix = "choose another"
        raise config_error(
            f"buffer.{key}", source_name, "has no steps", "a dataset with rows is allowed", fix
        )
    return lengths
