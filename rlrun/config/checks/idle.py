"""Keys of the command line that nothing reads under the rest of the config. Torch-free.

Only typed keys are asked about: files give keys of every option, and a sweep's lines share theirs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields

from rlrun.config.messages import override_key
from rlrun.config.reader import fail
from rlrun.schema import Config, LearnerConfig, SACConfig, SwitchedConfig

_READERS = {  # keys of a policy with switches -> the options of policy.distribution that read them
    "atoms": ("categorical", "quantile"),
    "v_min": ("categorical",),
    "v_max": ("categorical",),
    "kappa": ("quantile", "implicit"),
    "taus": ("implicit",),
    "taus_target": ("implicit",),
    "taus_act": ("implicit",),
    "cosines": ("implicit",),
}


def check_typed(config: Config, overrides: Sequence[str]) -> None:
    """Raises ConfigError for the first of ``overrides`` that would change nothing."""
    unread = dict(_unread(config))
    for text in overrides:
        key = override_key(text)
        name = ".".join(key.split(".")[:2])  # explore.epsilon.start belongs to explore.epsilon
        value = text.partition("=")[2]
        if name in unread and value != "null":
            allowed, fix = unread[name]
            raise fail(key, value, "it would change nothing", allowed, f"{fix}, or leave it out")


def _unread(config: Config) -> Iterator[tuple[str, tuple[str, str]]]:
    """(key, (what reads it, what to do)) for every key that nothing reads."""
    explore = config.explore.name
    if explore == "ladder" and config.collector.num_envs > 1:
        reads = "a ladder of several environments goes by explore.eps and explore.alpha"
        yield "explore.epsilon", (reads, "set explore=schedule")
    elif explore in ("boltzmann", "none"):
        yield "explore.epsilon", ("explore=schedule reads it", "set explore=schedule")
    if explore != "ladder":
        for key in ("explore.eps", "explore.alpha"):
            yield key, ("explore=ladder reads it", "set explore=ladder")
    if explore != "boltzmann":
        yield "explore.temperature", ("explore=boltzmann reads it", "set explore=boltzmann")
    if config.transport.name != "coded":
        for key in ("weights", "chunks", "keep", "key_seconds"):
            reads = "transport=coded reads it"
            yield f"transport.{key}", (reads, "set transport=coded")
    if config.agents.name != "joint":
        for key in ("team_reward", "state"):
            yield f"agents.{key}", ("agents=joint reads it", "use policy=qmix or policy=vdn")
    yield from _memory(config)
    for key, reader, example in (
        ("demo_ratio", "demos", "DIR"), ("relabel_ratio", "relabel", "future"),
    ):  # fmt: skip
        if getattr(config.buffer, reader) is None:
            reads = f"buffer.{reader} reads it"
            yield f"buffer.{key}", (reads, f"set buffer.{reader}={example}")
    if not config.policy.learns:
        names = {field.name for field in fields(LearnerConfig)} - {"threads"}  # torch's, for all
        for name in sorted(names):
            yield f"learner.{name}", ("a policy that learns reads it", "choose one")
    if isinstance(config.policy, SACConfig) and not config.policy.temperature_auto:
        reads = "policy.temperature_auto=true reads it"
        yield "policy.target_entropy", (reads, "set policy.temperature_auto=true")
    if isinstance(config.policy, SwitchedConfig):
        yield from _switched(config.policy)
    yield from _environment(config)


def _environment(config: Config) -> Iterator[tuple[str, tuple[str, str]]]:
    """What another key would take from the environment, had it no value of its own."""
    for key in ("total_steps", "eval_every", "stop_value"):
        if getattr(config.run, key) != getattr(config.env, key):
            yield f"env.{key}", (f"run.{key} has a value of its own", f"set run.{key}")
    if config.learner.start_after != config.env.warmup_steps:
        own = f"learner.start_after is {config.learner.start_after} whatever the environment"
        yield "env.warmup_steps", (own, "set learner.start_after")


def _memory(config: Config) -> Iterator[tuple[str, tuple[str, str]]]:
    name, some, fix = config.memory.name, "memory=lstm, gru or mingru", "set memory=lstm"
    if not config.policy.recurrent:
        remembers = config.policy.remembers or "one that does"
        some, fix = f"{some} of a policy that has a memory", f"use {remembers}"
    if name == "none":
        yield "memory.hidden", (f"{some} reads it", fix)
        for key in ("state_init", "segment_len"):
            yield f"policy.{key}", (f"{some} reads it", fix)
    if name in ("none", "gru"):
        reads = "memory=lstm or mingru reads it" if config.policy.recurrent else f"{some} reads it"
        yield "memory.forget_bias", (reads, fix)


def _switched(policy: SwitchedConfig) -> Iterator[tuple[str, tuple[str, str]]]:
    for key, options in _READERS.items():
        if policy.distribution not in options:
            reads = " and ".join(f"policy.distribution={name}" for name in options)
            fix = f"set policy.distribution={options[0]}"
            yield f"policy.{key}", (f"{reads} read{'s' if len(options) == 1 else ''} it", fix)
    if policy.noisy is None:
        yield "policy.noisy_hold", ("policy.noisy reads it", "set policy.noisy=0.5")
    if policy.munchausen is None:
        for key in ("munchausen_tau", "munchausen_clip"):
            yield f"policy.{key}", ("policy.munchausen reads it", "set policy.munchausen=0.9")
