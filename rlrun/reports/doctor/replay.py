"""Rules on what is replayed: buffer, priorities, windows, states, replay ratio."""

from rlrun.reports.doctor.evidence import Evidence
from rlrun.reports.doctor.finding import HARMFUL, NOTE, Finding, Rule, steps


def small_buffer(e: Evidence) -> Finding | None:
    """A full buffer with fewer than 20 batches, less than a tenth of what was collected.

    Every window is then drawn many times within a short past and forgotten. Source: Fedus et al.
    2020, "Revisiting Fundamentals of Experience Replay", figure 2 (more capacity, higher scores).
    """
    windows, batch = e.metric("buffer/windows").last, e.number("learner.batch_size")
    capacity, age = e.number("buffer.capacity"), e.metric("buffer/sample_age").last
    full = e.metric("buffer/fill").last >= 1 and e.replay and not e.offline
    if not full or e.solved or not (windows < 20 * batch and capacity < 0.1 * e.env_steps):
        return None
    old = f"; they are {age:.0f} env steps old, of {e.env_steps:.0f}" if age >= 0 else ""
    return Finding(
        HARMFUL,
        f"The buffer is small: {windows:.0f} windows for batches of {batch:.0f}{old}.",
        "The network forgets what the buffer no longer holds.",
        e.scaled("buffer.capacity", 10), ("buffer/sample_age", "buffer/windows", "buffer/fill"),
    )  # fmt: skip


def early_evictions(e: Evidence) -> Finding | None:
    """More than 5 % of the windows were dropped while their rows were still stored."""
    early = e.metric("buffer/early_evictions").last
    windows = e.metric("buffer/windows").last
    if not early > 0.05 * (early + windows):
        return None
    return Finding(
        HARMFUL, f"{early:.0f} windows were dropped before their rows; {windows:.0f} are kept.",
        "The table of windows is smaller than the rows allow.",
        e.set("buffer.window_capacity", "null"), ("buffer/early_evictions", "buffer/windows"),
    )  # fmt: skip


def much_replay(e: Evidence) -> Finding | None:
    """A thousand rows learned per row collected, and the score does not hold.

    Four updates of 256 rows per env step: from there on networks overfit early data without resets
    (Nikishin et al. 2022, "The Primacy Bias"; D'Oro et al. 2023). Presets have 32 to 256.
    """
    ratio = e.metric("train/replay_ratio").late
    if e.offline or not e.replay or e.solved or not ratio > 1000 or not e.fails:
        return None
    return Finding(
        HARMFUL, f"{ratio:.0f} rows are learned for each row collected; the score does not rise.",
        "The networks overfit to early data.",
        [*e.scaled("learner.replay_ratio", 100 / ratio),
         *e.scaled("learner.update_per_collect", 100 / ratio)],
        ("train/replay_ratio", "train/td_abs", "train/dead_units"),
    )  # fmt: skip


def little_replay(e: Evidence) -> Finding | None:
    """Fewer than one row in four is ever learned from.

    R2D2 and Ape-X learn 0.8 to 1.3 rows per row with hundreds of actors, where rows are cheap.
    """
    found = e.metric("train/replay_ratio").values
    if e.offline or not e.replay or e.solved or not len(found):
        return None
    ratio = float(found.mean())
    if not ratio < 0.25:
        return None
    return Finding(
        HARMFUL, f"{ratio:.2g} rows are learned for each row collected: most are never used.",
        "More updates cost compute time but no env steps.",
        [*e.set("learner.replay_ratio", 64)], ("train/replay_ratio", "train/updates"),
    )  # fmt: skip


def priorities_collapsed(e: Evidence) -> Finding | None:
    """The effective sample of all stored windows is smaller than one batch, and below 5 %."""
    ess, windows = e.metric("buffer/priority_ess"), e.metric("buffer/windows").late
    batch = e.number("learner.batch_size")
    if e.solved or not (ess.late < 0.05 and ess.late * windows < batch):
        return None
    return Finding(
        HARMFUL,
        f"Priorities have collapsed: {windows:.0f} windows are sampled like "
        f"{max(1.0, ess.late * windows):.0f} ({ess.late:.2%}) from {steps(ess.late_since)} on.",
        "A few windows with large errors are in every batch; others are hardly seen.",
        [*e.scaled("buffer.alpha", 0.5), *(
            e.set("policy.td_clip", 1) if e.value("policy.distribution") in (None, "none") else []
        ), *e.scaled("policy.eta", 0.5)],
        ("buffer/priority_ess", "buffer/priority_max", "buffer/priority_mean"),
    )  # fmt: skip


def extreme_weights(e: Evidence) -> Finding | None:
    """Importance weights spread by twice their mean: an effective batch of a fifth.

    Kish 1965: weights of coefficient of variation c leave n / (1 + c^2) of n samples.
    """
    spread = e.metric("buffer/weight_spread")
    if e.solved or not spread.late > 2:
        return None
    left = 1 / (1 + spread.late * spread.late)
    return Finding(
        HARMFUL, f"Importance weights are extreme: spread {spread.late:.2g} times their mean, so a "
        f"batch counts like {left:.0%} of its windows.",
        "Rare windows with tiny priorities have nearly all the weight.",
        [*e.scaled("buffer.alpha", 0.5), *e.scaled("buffer.beta.end", 0.5)],
        ("buffer/weight_spread", "buffer/beta", "buffer/priority_ess"),
    )  # fmt: skip


def stale_states(e: Evidence) -> Finding | None:
    """At the last learned row Q still differs by half from Q of the true state.

    R2D2, figure 1, has 0.02 to 0.2 with stored states and burn-in; 90 runs of repeat_previous 0.01
    to 0.14 with burn-in and 0.16 to 0.3 without. Relative to max Q it can be large where Q is near
    0 (tmaze), so runs whose score rises are left out.
    """
    zero = e.value("policy.state_init") == "zero"
    name = f"train/delta_q_{'zero' if zero else 'stored'}_last"
    gap = e.metric(name)
    if e.solved or e.thrives or not gap.late > 0.5:
        return None
    burnin = e.number("policy.burnin_step")
    longer = max(4, round(2 * burnin)) if burnin >= 0 else 4
    return Finding(
        HARMFUL, f"Windows start from wrong states: at their last learned row Q is off by "
        f"{gap.late:.0%} ({name}) from {steps(gap.late_since)} on.",
        "Burn-in is too short, or the stored states are from much older networks.",
        [*e.set("policy.state_init", "stored"), *e.set("policy.burnin_step", longer),
         *e.scaled("buffer.capacity", 0.5)],
        (name, "buffer/sample_age"),
    )  # fmt: skip


def padding(e: Evidence) -> Finding | None:
    """More than half of the learned positions are padding."""
    valid, length = e.metric("train/valid_fraction"), e.metric("collect/length_mean").late
    unroll, nstep = e.number("policy.learn_unroll_len"), e.number("policy.nstep")
    if not valid.late < 0.5 or not unroll > 0:
        return None
    least = nstep + 1 if nstep >= 1 else 1
    shorter = max(least, min(unroll / 2, length)) if length > 0 else max(least, unroll / 2)
    return Finding(
        NOTE, f"Windows are mostly padding: {valid.late:.0%} of their learned positions are steps; "
        f"episodes have {length:.0f} steps, windows {unroll:.0f}.",
        "Updates spend their time on padding; no row is lost.",
        e.set("policy.learn_unroll_len", int(shorter)), ("train/valid_fraction",),
    )  # fmt: skip


def rows_lost(e: Evidence) -> Finding | None:
    """More than a fifth of all steps is in no window; open episodes explain little of it."""
    part, length = e.metric("buffer/learned_fraction").last, e.metric("collect/length_mean").late
    open_rows = e.number("collector.num_envs") * max(length, 1.0)
    if e.offline or not part < 0.8 or open_rows > 0.05 * e.env_steps:
        return None
    return Finding(
        HARMFUL, f"Only {part:.0%} of the collected steps can be learned from.",
        "Ends of episodes fill no window and are dropped.",
        [*e.set("collector.tiling", "lossless"), *(
            e.set("collector.residual", "null_padding")
            if e.value("collector.tiling") == "plain" else []
        )],
        ("buffer/learned_fraction",),
    )  # fmt: skip


def late_priorities(e: Evidence) -> Finding | None:
    """More than 1 % of the priorities came back for windows that were gone."""
    late, updates = e.metric("buffer/late_priorities").last, e.metric("train/updates").last
    share = late / max(1.0, updates * e.number("learner.batch_size"))
    if not share > 0.01:
        return None
    return Finding(
        HARMFUL, f"{share:.0%} of all priorities came back after their window was overwritten.",
        "The buffer turns over within a few updates.",
        e.scaled("buffer.capacity", 10), ("buffer/late_priorities", "buffer/fill"),
    )  # fmt: skip


RULES = (
    Rule("small buffer", small_buffer,
         ("late priorities", "forgetting", "no progress", "much replay")),
    Rule("early evictions", early_evictions, ("small buffer",)),
    Rule("much replay", much_replay, ("forgetting", "no progress", "dead units", "loss grows")),
    Rule("little replay", little_replay, ("no progress",)),
    Rule("priorities collapsed", priorities_collapsed, ("no progress", "extreme weights")),
    Rule("extreme weights", extreme_weights, ("no progress",)),
    Rule("stale states", stale_states, ("no progress",)),
    Rule("padding", padding),
    Rule("rows lost", rows_lost, ("no progress",)),
    Rule("late priorities", late_priorities, ("no progress",)),
)  # fmt: skip
