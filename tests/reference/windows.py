"""A window built position by position from an episode: burn-in, learned rows, n-step tail."""

from tests.reference.streams import action_of, reward_of, state_of


def window_rows(episode, learn, window):
    """Positions of the window that learns steps [learn, learn + L) of ``episode``.

    -> (rows, state, (prev_action, prev_reward)); a row is None (filler) or a dict.
    """
    c, number, length = episode.column, episode.number, episode.length
    b = min(window.burnin, learn)
    rows = []
    for p in range(window.rows):
        t = learn + p - window.burnin
        if t < learn - b:
            rows.append(None)
        elif t < length:
            last = t == length - 1
            rows.append(
                {
                    "obs": (c, number, t),
                    "action": action_of(c, number, t),
                    "reward": reward_of(c, number, t),
                    "terminated": last and episode.terminated,
                    "truncated": last and not episode.terminated,
                    "valid": True,
                    "first": t == 0,
                }
            )
        else:
            rows.append(
                {
                    "obs": (c, number, length),
                    "action": action_of(c, number, length - 1),
                    "reward": 0.0,
                    "terminated": False,
                    "truncated": True,
                    "valid": False,
                    "first": False,
                }
            )
    start = learn - b
    previous = (0, 0.0)
    if start > 0:
        previous = (action_of(c, number, start - 1), reward_of(c, number, start - 1))
    return rows, state_of(c, number, start), previous
