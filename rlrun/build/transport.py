"""The link between learner and collector of a config."""

from rlrun.buffer.windows.cutter import StateFilter
from rlrun.schema import Config
from rlrun.transport import CollectorEnd, collector_end
from rlrun.types import Window


def make_collector_end(config: Config, window: Window | None) -> CollectorEnd:
    """The collector's end; recurrent states that no window starts from are blanked."""
    if window is None:
        return collector_end(config.transport)
    c = config.collector
    starts = StateFilter(
        window,
        columns=c.num_envs,
        overlap=(c.overlap or 0) if c.tiling == "plain" else c.learned_overlap,
        residual=c.residual,
        plain=c.tiling == "plain",
        close=c.trajectory == "collect",
    )
    return collector_end(config.transport, thin=starts.filter)
