"""Which updates can be a CUDA graph or go through torch.compile. Torch-free."""

from collections.abc import Iterator

from rlrun.config.checks.rollouts import policies
from rlrun.config.reader import fail
from rlrun.errors import ConfigError
from rlrun.schema import Config, SwitchedConfig, ValueConfig


def graphs(config: Config) -> Iterator[ConfigError]:
    """What stands against ``learner.cuda_graph`` and ``learner.compile`` where they are set."""
    learner, policy = config.learner, config.policy
    if not isinstance(policy, ValueConfig):
        fits = policies(lambda p: issubclass(p, ValueConfig))
        wrong = f"policy {policy.name} has no updates of that kind"
        for name, value in (("cuda_graph", learner.cuda_graph), ("compile", learner.compile)):
            if value:
                key = f"learner.{name}"
                yield fail(key, True, wrong, "false is allowed", f"set it, or use {fits}")
    elif learner.cuda_graph and config.agents.name == "separate":
        wrong = "every agent's part of a batch has a size of its own, a graph has one"
        yield fail("learner.cuda_graph", True, wrong, "false is allowed", "or set agents=shared")
    elif learner.cuda_graph and isinstance(policy, SwitchedConfig):
        drawn = policy.noisy is not None or policy.distribution == "implicit"
        wrong = "noise and quantile levels are drawn on the host for every update"
        fix = "or set policy.noisy=null and no policy.distribution=implicit"
        if drawn:
            yield fail("learner.cuda_graph", True, wrong, "false is allowed", fix)
