"""The collector's side of the transport of a plan."""

from rlrun.build.plan import Plan
from rlrun.build.replay import make_state_filter
from rlrun.transport import CollectorSide, make_collector_side


def collector_side_of(plan: Plan) -> CollectorSide:
    """The collector's side; recurrent states that no window starts from are blanked."""
    transport = plan.config.transport
    if plan.window is None:
        return make_collector_side(transport)
    return make_collector_side(transport, thin=make_state_filter(plan).filter)
