"""Which updates can be a CUDA graph. Torch-free."""

from collections.abc import Iterator

from rlrun.config.reader import fail
from rlrun.config.rollouts import policies
from rlrun.errors import ConfigError
from rlrun.schema import Config, SwitchedConfig, ValueConfig


def graphs(config: Config) -> Iterator[ConfigError]:
    """What stands against ``learner.cuda_graph`` where it is set."""
    key, policy = "learner.cuda_graph", config.policy
    if not config.learner.cuda_graph:
        return
    if not isinstance(policy, ValueConfig):
        fits = policies(lambda p: issubclass(p, ValueConfig))
        wrong = f"updates of policy {policy.name} are not captured"
        yield fail(key, True, wrong, "false is allowed", f"or use {fits}")
    elif isinstance(policy, SwitchedConfig):
        drawn = policy.noisy is not None or policy.distribution == "implicit"
        wrong = "noise and quantile levels are drawn on the host for every update"
        fix = "or set policy.noisy=null and no policy.distribution=implicit"
        if drawn:
            yield fail(key, True, wrong, "false is allowed", fix)
