"""``rlrun doctor env=NAME``: what can be checked of an environment from outside. Torch-free."""

from collections.abc import Sequence


def env_health(overrides: Sequence[str], *, config_dir: str | None = None) -> int:
    """Print one line per check of the environment of ``overrides``; return the exit code.

    That is 0 whether or not there are findings: they are advice, not a verdict.

    Raises: ConfigError: no such environment, or it cannot be made.
    """
    import logging

    from rlrun.config import Composer
    from rlrun.config.compose import read_presets
    from rlrun.config.hydra_keys import check_values
    from rlrun.env.examine import FINDING, examine
    from rlrun.errors import printable

    composer = Composer(config_dir=config_dir)
    if not any(text.startswith("policy=") for text in overrides):
        overrides = ["policy=random", *overrides]  # any spaces
    overrides = composer.rewrite(overrides)
    config = read_presets(composer, composer.compose(overrides), overrides)
    check_values(config, overrides)
    count = 0
    logging.disable(logging.WARNING)  # what is logged of an environment is among the checks
    try:
        for check in examine(config.env, config.agents):
            print(printable(f"{check.verdict:<15}{check.name:<20}{check.text}"), flush=True)
            count += check.verdict == FINDING
    finally:
        logging.disable(logging.NOTSET)
    number = {0: "no finding", 1: "1 finding"}.get(count, f"{count} findings")
    print(printable(f"{config.env.id}: {number} (rlrun help environment checks)"), flush=True)
    return 0
