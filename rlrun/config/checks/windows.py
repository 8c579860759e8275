"""Checks of windows against collector and buffer. Torch-free."""

from collections.abc import Iterator

from rlrun.config.config_errors import config_error
from rlrun.errors import ConfigError
from rlrun.schema import Config
from rlrun.schema.policy import Window


def overlap_errors(config: Config, window: Window) -> Iterator[ConfigError]:
    collector, rows, learned = config.collector, window.rows, window.learned
    if collector.overlap is not None and collector.overlap >= rows:
        wrong = f"windows of {rows} rows cannot share that many"
        allowed = f"0 to {rows - 1} are allowed"
        fix = "lower it or lengthen the window (burnin_step + learn_unroll_len)"
        yield config_error("collector.overlap", collector.overlap, wrong, allowed, fix)
    if collector.learned_overlap >= learned:
        wrong = f"a window learns {learned} rows (learn_unroll_len - nstep)"
        allowed = f"0 to {learned - 1} are allowed"
        fix = "lower it or raise policy.learn_unroll_len"
        yield config_error(
            "collector.learned_overlap", collector.learned_overlap, wrong, allowed, fix
        )


def capacity_errors(config: Config, window: Window, envs: int) -> Iterator[ConfigError]:
    """Yield the errors of the sizes of buffer and batch. ``envs``: columns."""
    buffer, batch, rows = config.buffer, config.learner.batch_size, window.rows
    least = rows + max(1, config.env.frame_stack - 1)  # a window and the rows read before it
    if buffer.capacity // envs < least:
        wrong = f"{envs} columns of {buffer.capacity // envs} rows hold no window of {rows} rows"
        per = envs // config.collector.num_envs  # agents with columns of their own
        each = f"{per} agents x " if per > 1 else ""
        allowed = f"at least collector.num_envs x {each}{least} = {envs * least} rows"
        fix = f"set buffer.capacity={envs * least} or more"
        yield config_error("buffer.capacity", buffer.capacity, wrong, allowed, fix)
    stride = max(config.collector.stride(window), 1)
    windows = min(buffer.capacity // stride, buffer.window_capacity or buffer.capacity)
    if batch > windows:
        wrong = f"the buffer holds at most {windows} windows ({buffer.capacity} rows)"
        fix = f"lower it, or raise buffer.capacity to {batch * stride} rows"
        if buffer.window_capacity is not None and batch > buffer.window_capacity:
            fix = f"lower it, or raise buffer.window_capacity to {batch}"
        yield config_error("learner.batch_size", batch, wrong, f"1 to {windows} are allowed", fix)
    if config.learner.learning_starts > buffer.capacity:
        wrong = f"the buffer never holds more than buffer.capacity = {buffer.capacity} rows"
        allowed = f"0 to {buffer.capacity} are allowed"
        fix = "lower it or raise buffer.capacity"
        yield config_error(
            "learner.learning_starts", config.learner.learning_starts, wrong, allowed, fix
        )


def relabel_errors(config: Config, window: Window) -> Iterator[ConfigError]:
    kind, none = config.buffer.relabel, "set buffer.relabel=null"
    if kind is None:
        return
    if window[:2] != (0, 1) or config.collector.tiling != "lossless":
        wrong = "hindsight goals are for single rows (a stored state saw the old goal)"
        allowed = "one learned row (policy=dqn, ddpg, td3 or sac) and collector.tiling=lossless"
        yield config_error("buffer.relabel", kind, wrong, allowed, none)
    if config.env.frame_stack > 1:
        wrong = f"goals are not stacked, env.frame_stack is {config.env.frame_stack}"
        yield config_error("buffer.relabel", kind, wrong, "env.frame_stack=1 is allowed", none)
    if config.buffer.compress:
        wrong = "goals are looked up row by row, which compressed rows are not for"
        yield config_error("buffer.relabel", kind, wrong, "buffer.compress=false is allowed", none)
    if config.buffer.device != "cpu":
        wrong = (
            f"the environment computes rewards on the host, buffer.device is {config.buffer.device}"
        )
        yield config_error("buffer.relabel", kind, wrong, "buffer.device=cpu is allowed", none)
