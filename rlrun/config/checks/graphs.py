"""Checks of ``learner.cuda_graph`` and ``learner.compile``. Torch-free."""

from collections.abc import Iterator

from rlrun.config.checks.rollouts import policies_that
from rlrun.config.config_errors import config_error
from rlrun.errors import ConfigError
from rlrun.schema import Config, SwitchedConfig, ValueConfig


def graph_errors(config: Config) -> Iterator[ConfigError]:
    """Yield the errors of ``learner.cuda_graph`` and ``learner.compile``."""
    learner, policy = config.learner, config.policy
    if not isinstance(policy, ValueConfig):
        fits = policies_that(lambda p: issubclass(p, ValueConfig))
        wrong = f"policy {policy.name} has no updates of that kind"
        for name, value in (("cuda_graph", learner.cuda_graph), ("compile", learner.compile)):
            if value:
                key = f"learner.{name}"
                yield config_error(key, True, wrong, "false is allowed", f"set it, or use {fits}")
    elif learner.cuda_graph and config.agents.name == "separate":
        wrong = "every agent's part of a batch has a size of its own, a graph has one"
        yield config_error(
            "learner.cuda_graph", True, wrong, "false is allowed", "or set agents=shared"
        )
    elif learner.cuda_graph and isinstance(policy, SwitchedConfig):
        drawn = policy.noisy is not None or policy.distribution == "implicit"
        wrong = "noise and quantile levels are drawn on the host for every update"
        fix = "or set policy.noisy=null and no policy.distribution=implicit"
        if drawn:
            yield config_error("learner.cuda_graph", True, wrong, "false is allowed", fix)
