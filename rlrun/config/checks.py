"""Checks across several config keys, of spaces, files and the machine. Torch-free.

``rlrun.config.rules`` holds the settings that do not fit together, a row per error.
"""

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rlrun.config import rules
from rlrun.config.backend import custom_state
from rlrun.config.compose import Composer, read_presets
from rlrun.config.config_errors import config_error, require_packages
from rlrun.config.directories import check_length
from rlrun.config.hydra_keys import check_addresses, check_values
from rlrun.config.ray import PACKAGES, require_head
from rlrun.errors import ConfigError, ResourceError
from rlrun.schema import Config, RayConfig, ScriptedConfig
from rlrun.schema.override import Override, keys_of
from rlrun.schema.ranges import (
    SCHEDULE_READERS,
    Condition,
    Reader,
    ScheduleConfig,
    fill,
    format_value,
    join_words,
)
from rlrun.trust import trusted_function
from rlrun.video import files


def read_checked(
    composer: Composer,
    cfg: DictConfig,
    overrides: Sequence[Override],
    *,
    typed: Sequence[Override] | None = None,
) -> Config:
    """Return the config of a run about to begin, after all checks that need no directory.

    ``overrides``: those of which it was composed. ``typed``: those of the command line; None: all.
    Only typed ones may name an address, a path outside the working directory or an environment of
    an untrusted package.

    Raises: ConfigError, ResourceError.
    """
    config = read_presets(composer, cfg, overrides)
    by_user = overrides if typed is None else typed
    check_values(config, by_user)
    check_addresses(config, keys_of(by_user))
    preset = cfg.hydra.runtime.choices.get("policy") or config.policy.name
    check(replace(config, policy=replace(config.policy, name=preset)))  # rainbow, not dqn
    check_precision(config)
    return config


def check(config: Config, *, fresh: bool = True) -> None:
    """Raise ConfigError or ResourceError for the first setting that does not fit.

    ``fresh``: for a run about to begin; False skips the checks that only matter then.
    """
    ray = config.pipeline if isinstance(config.pipeline, RayConfig) else None
    if ray is not None:
        require_packages("pipeline = ray", "ray", *PACKAGES)
    for key, device in (("device", config.device), ("buffer.device", config.buffer.device)):
        if device != "cpu":
            _check_device(key, device)
    for key in ("load", "demos", "mmap"):
        if (path := getattr(config.buffer, key)) is not None:
            check_length(f"buffer.{key}", Path(path))
    rules.require_all(rules.ON_CONFIG, rules.Facts(config, fresh=fresh))
    check_spaces(config, fresh=fresh)
    if fresh and config.run.video_every is not None:
        check_video(config)
    if fresh and ray is not None:
        require_head(ray.address)
    rules.require_all(rules.AT_LAST, rules.Facts(config))


def check_precision(config: Config) -> None:
    """Raise ResourceError if this machine cannot learn in ``learner.precision``.

    It is separate from ``check`` because testing for an LSTM in bf16 on a CPU imports torch.
    """
    rules.require_all(rules.PRECISION, rules.Facts(config))


def check_spaces(config: Config, *, fresh: bool) -> None:
    """Raise ConfigError if the environment's spaces, or a dataset, do not fit the config."""
    from rlrun.buffer.layout import check_demos, check_rollout, check_size, make_layout, row_of
    from rlrun.env import known_spaces  # slow to import

    spaces = known_spaces(config.env, config.agents)
    (obs, action, _), facts = spaces, rules.Facts(config, spaces=spaces)
    if isinstance(config.policy, ScriptedConfig) and config.policy.function is not None:
        trusted_function("policy.function", config.policy.function)
    rules.require_all((*rules.ON_SPACES, *rules.SIZES), facts)
    row = row_of(config, obs, action, custom_state(config.memory))
    if config.policy.on_policy and fresh:
        check_rollout(config, row)
    window = config.policy.window
    if window is None:
        return
    layout = make_layout(config, row, window, facts.columns)
    if config.buffer.compress and not layout.packed:
        wrong = f"{config.env.id} observes no images (uint8, at least 256 bytes a row)"
        allowed = "an environment that does, or false, is allowed"
        raise config_error("buffer.compress", True, wrong, allowed, "set buffer.compress=false")
    if not fresh:
        return
    if config.buffer.load is not None:
        lengths = check_dataset(config, "load", config.buffer.load, obs, action)
        rules.require_all(rules.ON_DATASET, rules.Facts(config, lengths=lengths))
    check_size(config, layout, window)
    if config.buffer.demos is not None:
        lengths = check_dataset(config, "demos", config.buffer.demos, obs, action)
        check_demos(config, layout, window, lengths)


def check_dataset(config: Config, key: str, source_name: str, obs: Any, action: Any) -> list[int]:
    """Return the lengths of a dataset's trajectories.

    Raises: ConfigError if they do not fit the environment.
    """
    if not source_name.startswith("minari:") and not Path(source_name, "dataset.json").is_file():
        what = "has no dataset.json" if Path(source_name).is_dir() else "is not a directory"
        allowed, fix = (
            "a dataset directory is allowed",
            "make one with rlrun export RUN_DIR DATA_DIR",
        )
        raise config_error(f"buffer.{key}", source_name, what, allowed, fix)
    from rlrun.dataset import open_source
    from rlrun.types import Spec  # imports torch

    source = open_source(source_name, f"buffer.{key}")
    source.require(Spec(obs, action), config.collector.keep_info)
    lengths = [trajectory.steps for trajectory in source.trajectories()]
    if not lengths:
        wrong, allowed = "has no steps", "a dataset with rows is allowed"
        raise config_error(f"buffer.{key}", source_name, wrong, allowed, "choose another")
    return lengths


def _check_device(key: str, device: str) -> None:
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if not match:
        allowed = "cpu, cuda or cuda:N are allowed"
        fix = "cuda" if re.match(r"gpu|cuda", device, re.IGNORECASE) else "cpu"
        raise config_error(key, device, "unknown device", allowed, f"set {key}={fix}")
    count, why = cuda_devices()
    index = int(match.group(1) or 0)
    if index < count:
        return
    wrong = why if count == 0 else f"there are {count} CUDA devices, numbered from 0"
    allowed = "cpu" if count == 0 else f"cpu, cuda or cuda:0 to cuda:{count - 1}"
    raise ResourceError(f"{key} = {device}: {wrong}; allowed here: {allowed}; set {key}=cpu")


@cache
def cuda_devices() -> tuple[int, str]:
    """Return (number of CUDA devices, why there is none), without importing torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return 0, "torch is not installed"
    version = Path(spec.origin).with_name("version.py")
    text = version.read_text(encoding="utf-8") if version.is_file() else ""
    if re.search(r"^cuda\s*(?::[^=]*)?=\s*None", text, re.MULTILINE):
        return 0, "the installed torch is built without CUDA"
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0, "this machine has no NVIDIA driver"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0, "the NVIDIA driver finds no device"
    return count.value, "the NVIDIA driver finds no device"


def check_video(config: Config) -> None:
    """Raise ConfigError if an evaluation could not be drawn. Draws one picture to find out."""
    from rlrun.env import make_env

    every = config.run.video_every
    files.require_packages(f"run.video_every = {every}", ".gif")
    try:
        env = make_env(config.env, num_envs=1, evaluate=True, agents=config.agents, render=True)
        try:
            env.reset(seed=0)
            env.render()
        finally:
            env.close()
    except (ConfigError, ResourceError) as e:
        e.args = (f"run.video_every = {every}: {e}, or set it to null",)
        raise


def check_typed_keys(configs: Sequence[Config], overrides: Sequence[Override]) -> None:
    """Raise ConfigError for the first of ``overrides`` that changes nothing in any of ``configs``.

    Jobs of a sweep share a line, so one of them may ignore a key. Only typed keys are checked:
    files set keys of every option.
    """
    from rlrun.env import known_spaces  # slow to import

    typed = [override for override in overrides if override.value != "null"]
    jobs = [rules.Facts(c, spaces=known_spaces(c.env, c.agents)) for c in configs if typed]
    for override in typed:
        reasons = [_unread(facts, override.key) for facts in jobs]
        if reasons and (reason := reasons[0]) is not None and None not in reasons:
            wrong, allowed = "it would change nothing", reason[0]
            fix = f"{reason[1]}, or leave it out"
            raise config_error(override.key, override.value, wrong, allowed, fix)


def _unread(facts: rules.Facts, key: str) -> tuple[str, str] | None:
    """Return (what reads ``key``, what to do) if nothing reads it, else None."""
    config, value_of = facts.config, facts.value
    group, name, part = [*key.split("."), "", ""][:3]  # explore, epsilon, start
    if config.pipeline.name == "offline" and getattr(config, group, None) in _collecting(config):
        return "an offline run (pipeline=offline) collects nothing", "set pipeline=serial"
    known = _fields(config, group)
    metadata: Mapping[str, Any] = known[name].metadata if name in known else {}
    if "default_of" in metadata:
        owner = metadata["default_of"]
        reads, _, default = owner.partition(".")
        if default not in _fields(config, reads):
            return f"{reads}={value_of(reads)} has no {owner}", f"choose another {reads}"
        value = value_of(owner)
        if value != value_of(f"{group}.{name}"):
            return f"{owner} is {format_value(value)} whatever the environment", f"set {owner}"
        return _unread(facts, owner)
    reader: Reader | None = metadata.get("read_when")
    if reader is None:
        return _unread_part(config, group, name, part)
    unmet = [[c for c in every if not _is_met(facts, c)] for every in reader.any_of]
    if not all(unmet):
        return _unread_part(config, group, name, part)
    reads = " or ".join(" with ".join(map(str, every)) for every in unmet)
    fix = reader.fix or fill(" and ".join(c.fix for c in unmet[0]), facts)
    return f"{reads} reads it{_keys_read_instead(facts, group, unmet[0][0])}", fix


def _unread_part(config: Config, group: str, name: str, part: str) -> tuple[str, str] | None:
    """Return the answer of ``_unread`` for part of a schedule that its kind does not read."""
    schedule = getattr(getattr(config, group, None), name, None)
    kinds = SCHEDULE_READERS.get(part, ())
    if not kinds or not isinstance(schedule, ScheduleConfig) or schedule.kind in kinds:
        return None
    kind = f"{group}.{name}.kind"
    return f"{kind}={join_words(kinds, 'or')} reads it", f"set {kind}={kinds[0]}"


def _collecting(config: Config) -> list[Any]:
    """Return the parts that concern only the collection of rows, unless they do nothing."""
    unused = (config.explore, "none"), (config.transport, "raw")
    return [part for part, nothing in unused if part.name != nothing]


def _fields(config: Config, group: str) -> dict[str, Field[Any]]:
    part = getattr(config, group, None)
    return {f.name: f for f in fields(part)} if is_dataclass(part) else {}


def _is_met(facts: rules.Facts, condition: Condition) -> bool:
    value = facts.value(condition.key)
    if not condition.values:
        return value not in (None, False)
    own_class = condition.key == "memory" and ":" in value  # it may read any key
    return own_class or format_value(value) in condition.values


def _keys_read_instead(facts: rules.Facts, group: str, unmet: Condition) -> str:
    """Return a text with the group's keys that are read now and not if ``unmet`` were met."""
    keys = []
    for name, field in _fields(facts.config, group).items():
        reader: Reader | None = field.metadata.get("read_when")
        first, *others = reader.any_of[0] if reader else (unmet,)
        apart = first.key == unmet.key and not set(unmet.values[:1]) & set(first.values)
        if apart and all(_is_met(facts, condition) for condition in (first, *others)):
            keys.append(f"{group}.{name}")
    return f" (read now: {join_words(keys, 'and')})" if keys else ""
