"""Check of run.video_every: the environment can be drawn here. Torch-free."""

from rlrun.errors import ConfigError, ResourceError
from rlrun.schema import Config
from rlrun.video.files import require_packages


def check_video(config: Config) -> None:
    """Raise ConfigError where an evaluation could not be drawn; one picture is."""
    every = config.run.video_every
    if every is None:
        return
    from rlrun.env import make_env

    require_packages(f"run.video_every = {every}", ".gif")
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
