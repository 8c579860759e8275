"""Rules on how a run went, on learning, and on what is replayed. Thresholds are justified each."""

import math

import numpy as np

from rlrun.reports.doctor.evidence import (
    BROKEN,
    HARMFUL,
    NOTE,
    PARTS,
    Evidence,
    Finding,
    rule,
    steps,
)

# -- how the run went: failures, damage, time ------------------------------------------------------

_SLOW_SECONDS = 60.0  # shorter runs are as fast as they need to be


@rule("failed")
def failed(e: Evidence) -> Finding | None:
    """The run ended with an error, which rlrun.log has."""
    if e.run.status != "failed":
        return None
    why = e.run.failure or f"exit code {e.run.exit_code}"
    return Finding(
        BROKEN, f"The run failed at {steps(e.env_steps)}: {why}", "Its last line says what to do.",
        [f"rlrun resume {e.run.path}, once that is done"], ("rlrun.log",),
    )  # fmt: skip


@rule("interrupted")
def interrupted(e: Evidence) -> Finding | None:
    """The run was stopped by a signal or run.max_time and can go on."""
    unstarted = e.run.status == "not started" and bool(e.policy)
    if unstarted and not e.env_steps:
        return Finding(
            NOTE, "It made no step: there is no run.json.",
            "It was interrupted while it started, or is starting.",
            [f"rlrun resume {e.run.path}, unless it is starting"], ("rlrun.log",),
        )  # fmt: skip
    if e.run.status != "interrupted":
        return None
    return Finding(
        NOTE, f"It was interrupted at {steps(e.env_steps)} of {e.total_steps:.0f}.",
        "A resumed run gives the same records as one that was not interrupted.",
        [f"rlrun resume {e.run.path}"], ("run.json",),
    )  # fmt: skip


@rule("damaged", "no updates")
def damaged(e: Evidence) -> Finding | None:
    """Files cannot be read whole."""
    what = e.run.problem or e.run.damage or e.run.damaged_times
    if not what:
        return None
    return Finding(
        BROKEN, f"Its files are damaged: {what.rstrip('.')}.",
        "What follows the damage was not looked at.",
        [f"rlrun verify {e.run.path}"], ("metrics.jsonl",),
    )  # fmt: skip


@rule("restarts")
def restarts(e: Evidence) -> Finding | None:
    """Environments were started again after their process failed."""
    metrics = e.metric("collect/restarts"), e.metric("eval/restarted_episodes")
    if not any(map(len, metrics)):
        return None
    times = sum(metric.values.sum() for metric in metrics)
    first = min(float(metric.env_steps[0]) for metric in metrics if len(metric))
    return Finding(
        HARMFUL, f"Environments failed and were restarted {times:.0f} times, first by "
        f"{steps(first)}.",
        "Each restart cuts an episode, which does not count; the first error is in rlrun.log.",
        [*e.set("env.on_worker_failure", "stop"), *e.set("env.backend", "sync")],
        ("collect/restarts", "eval/restarted_episodes", "rlrun.log"),
    )  # fmt: skip


@rule("slow")
def slow(e: Evidence) -> Finding | None:
    """Of a minute or more, most of the time went into what is not training.

    Evaluation above 40 %, checkpoints above 15 %, records above 10 %: each can be had at less than
    a tenth of it by a longer period.
    """
    columns = e.times.columns
    spent = {p: float(columns[f"time/{p}_seconds"][1].max(initial=0.0)) for p in PARTS}
    total = sum(spent.values())
    if total < _SLOW_SECONDS or not math.isfinite(total):
        return None
    for part, most, key, what in (
        ("eval", 0.4, "run.eval_every", "evaluations"),
        ("checkpoint", 0.15, "run.checkpoint_every", "checkpoints"),
        ("log", 0.1, "logger.every", "records"),
    ):
        share = spent[part] / total
        if share > most:
            tries = e.scaled(key, max(2, round(share / 0.1)))
            tries += e.scaled("run.eval_episodes", 0.4) if part == "eval" else []
            return Finding(
                NOTE, f"{share:.0%} of the time goes into {what} ({spent[part]:.0f} of {total:.0f} "
                "seconds).",
                "Training waits for them.", tries, (f"time/{part}_seconds", "time/env_steps_per_s"),
            )  # fmt: skip
    return None


# -- losses, gradients, networks, targets ----------------------------------------------------------


@rule("no updates", "constant score", "no progress", "target stands still")
def no_updates(e: Evidence) -> Finding | None:
    """Rows were collected and no gradient step was taken."""
    if not e.learns or not e.env_steps or len(e.metric("train/updates")):
        return None
    starts = e.number("learner.learning_starts")
    late = starts >= e.env_steps
    if late and e.progress < 0.8 and starts < 0.5 * e.total_steps:
        return None  # not yet
    why = f"learner.learning_starts = {starts:.0f} was not reached" if late else (
        "no window was ever complete, or updates are far apart"
    )  # fmt: skip
    tries = e.scaled("learner.learning_starts", 0.1) if late else e.set("learner.replay_ratio", 64)
    return Finding(
        BROKEN, f"It never learned: no update in {steps(e.env_steps)}.", f"{why}.",
        tries, ("train/updates", "buffer/windows"),
    )  # fmt: skip


@rule("late learning", "no progress", "target stands still", "little replay")
def late_learning(e: Evidence) -> Finding | None:
    """Learning starts at half of the run or later. The presets start at 0.1 to 5 % of it."""
    starts, recorded = e.number("learner.learning_starts"), e.metric("train/updates").last
    updates = float(np.fmax(recorded, e.run.number("updates")))
    counts = e.replay and not e.offline and recorded > 0
    if not counts or e.solved or e.improved or not starts >= 0.5 * e.total_steps:
        return None
    return Finding(
        HARMFUL, f"Learning starts late: learner.learning_starts = {starts:.0f} of "
        f"{e.total_steps:.0f} env steps, {updates:.0f} updates in all so far.",
        "Before that, rows are collected and nothing is learned from them.",
        [*e.set("learner.learning_starts", max(1, round(min(1000.0, 0.1 * e.total_steps)))),
         f"run.total_steps={20 * starts:.0f}"],
        ("train/updates", "buffer/windows"),
    )  # fmt: skip


@rule("rollbacks")
def rollbacks(e: Evidence) -> Finding | None:
    """The loss became NaN and the run went back (run.on_nan=rollback)."""
    count = e.run.number("rollbacks")
    if not count >= 1:
        return None
    tries = [*e.scaled("policy.lr", 0.25), *e.set("policy.grad_clip", 10)]
    return Finding(
        BROKEN, "The loss became NaN or infinite, and the run went back to a checkpoint: "
        f"{count:.0f} time{'' if count == 1 else 's'}.",
        "The loss diverges; going back helps only until it does so again.",
        tries, ("train/loss", "train/grad_norm"),
    )  # fmt: skip


@rule(
    "overestimation", "loss grows", "gradients clipped", "large errors", "forgetting",
    "no progress",
)  # fmt: skip
def overestimation(e: Evidence) -> Finding | None:
    """Action values beyond what any policy could reach, and growing.

    Values are compared with the largest return seen, or the largest mean reward per step over a
    horizon of 1 / (1 - gamma), whichever is larger, in the units of the rescaled target. Three
    times that leaves room for better policies, ten times for those of a dataset, whose returns are
    not known; overestimation grows without bound (van Hasselt et al. 2018, "Deep RL and the deadly
    triad": soft divergence is Q beyond the bound).
    """
    q, returns = e.metric("train/q_taken"), e.largest_return
    shaped = e.value("bonus.name") not in (None, "none") or e.value("policy.munchausen") is not None
    if not e.replay or shaped or len(q) < 6 or math.isnan(returns):
        return None
    gamma = e.number("policy.gamma")
    length = e.metric("eval/length_mean" if e.offline else "collect/length_mean").late
    horizon = min(1e6, 1 / max(1e-6, 1 - gamma)) if gamma < 1 else 1e6
    per_step = returns / max(1.0, length) if length > 0 else 0.0
    scale = e.number("policy.reward_scale")
    reach = max(returns, per_step * horizon) * (scale if scale > 0 else 1.0)
    reach += _entropy_bonus(e) * horizon
    eps = e.number("policy.value_rescale_eps")
    bound = math.sqrt(reach + 1) - 1 + eps * reach if eps > 0 else reach
    room = 10 if e.offline else 3
    if not abs(q.late) > room * bound + 1 or abs(q.late) < 1.5 * abs(q.early):
        return None
    return Finding(
        BROKEN,
        f"Action values run away: train/q_taken is {q.late:.3g} from {steps(q.late_since)} on, and "
        f"no return seen allows more than {bound:.3g}.",
        "Targets chase the network's own overestimates.",
        [*e.set("policy.double", "true"), *e.scaled("policy.target_tau", 0.25),
         *e.scaled("policy.lr", 0.3)],
        ("train/q_taken", "train/td_abs", "train/target_lag"),
    )  # fmt: skip


def _entropy_bonus(e: Evidence) -> float:
    """The addition of SAC's entropy to a reward: Q is of rewards plus temperature times entropy."""
    weight, entropy = e.metric("train/temperature").values, e.metric("train/entropy").values
    if not len(weight) or not len(entropy):
        return 0.0
    return float(np.abs(weight).max() * np.abs(entropy).max())


@rule("loss grows", "forgetting", "no progress")
def loss_grows(e: Evidence) -> Finding | None:
    """The loss grew a hundredfold and the score did not improve.

    Losses of learned values grow with the returns: tenfold in the healthy runs of the tests.
    """
    loss = e.metric("train/loss")
    if e.on_policy or e.solved or e.improved or len(loss) < 9 or len(e.score) < 3:
        return None
    if not (loss.early > 0 and loss.late > 100 * loss.early):
        return None
    return Finding(
        HARMFUL, f"The loss grew from {loss.early:.2g} to {loss.late:.2g}, and the score did not "
        "rise.",
        "Steps are too large for these targets.",
        [*e.scaled("policy.lr", 0.25), *e.scaled("policy.reward_scale", 0.1)],
        ("train/loss", "train/td_abs", "train/q_taken"),
    )  # fmt: skip


@rule("gradients clipped", "no progress")
def gradients_clipped(e: Evidence) -> Finding | None:
    """Of policies with a replay: gradients ten times ``grad_clip`` all the time.

    Then every step has the same length, whatever the error. On-policy learners live so by default:
    PPO's norms are 60 to 90 at grad_clip=0.5 in a run that solves its task.
    """
    norm, clip = e.metric("train/grad_norm"), e.number("policy.grad_clip")
    if not e.replay or e.solved or not norm.late > 10 * clip:
        return None
    return Finding(
        HARMFUL,
        f"Every gradient is cut to policy.grad_clip = {clip:g}: its norm is {norm.late:.3g} from "
        f"{steps(norm.late_since)} on.",
        "Rewards or errors are large for this step size.",
        [*e.scaled("policy.reward_scale", 0.1), *e.scaled("policy.lr", 0.3)],
        ("train/grad_norm", "train/td_abs"),
    )  # fmt: skip


@rule("gradients vanish", "no progress")
def gradients_vanish(e: Evidence) -> Finding | None:
    """Gradients of float32 noise: below 1e-7, the precision of the numbers."""
    norm = e.metric("train/grad_norm")
    if not e.learns or not norm.late < 1e-7 or e.solved:
        return None
    return Finding(
        HARMFUL, f"Gradients have vanished: their norm is {norm.late:.1g} from "
        f"{steps(norm.late_since)} on.",
        "Units are saturated or dead, or every target equals every value.",
        [*e.scaled("policy.lr", 0.1), *e.scaled("policy.reward_scale", 10)],
        ("train/grad_norm", "train/dead_units", "train/td_abs"),
    )  # fmt: skip


@rule("dead units", "no progress", "forgetting")
def dead_units(e: Evidence) -> Finding | None:
    """More than 75 % of the hidden units are dead, or more than 60 % and many more than at first.

    A fresh ReLU network on few inputs has 20 to 57 % dormant units, and healthy runs keep that
    (measured); Sokar et al. 2023 see learning suffer where the share grows.
    """
    dead = e.metric("train/dead_units")
    value = dead.late if len(dead) >= 3 else dead.last
    if e.solved or not (value > 0.75 or value > max(0.6, dead.first + 0.15)):
        return None
    return Finding(
        HARMFUL, f"{value:.0%} of the hidden units are dead ({dead.first:.0%} at first).",
        "Too large steps or too many updates per row pushed them out of range for good.",
        [*e.scaled("policy.lr", 0.3), *e.scaled("learner.replay_ratio", 0.5),
         *e.set("torso.activation", "elu")],
        ("train/dead_units", "train/grad_norm"),
    )  # fmt: skip


@rule(
    "large step size", "overestimation", "loss grows", "dead units", "forgetting", "no progress",
    "large steps", "greedy is stuck", "gradients vanish", "one action", "entropy collapsed",
    "explained variance", "gradients clipped",
)  # fmt: skip
def large_step_size(e: Evidence) -> Finding | None:
    """Adam's step size is 0.02 or more: ten times that of any preset, where Adam starts at 1e-3.

    A schedule that starts at 0.02 records a little less.
    """
    lr, most = e.metric("train/lr"), 0.0199
    if e.solved or not len(lr) or not lr.values.max() > most:
        return None
    tries = e.set("policy.lr", 5e-4) if not e.number("policy.lr") <= most else []
    tries += e.set("policy.actor_lr", 3e-4) if e.number("policy.actor_lr") > most else []
    return Finding(
        HARMFUL, f"The step size is very large: train/lr {lr.values.max():.2g}.",
        "One step of Adam changes each weight by about that much.",
        tries, ("train/lr", "train/loss", "eval/return_mean"),
    )  # fmt: skip


@rule("no target network", "overestimation", "loss grows", "forgetting", "no progress")
def no_target_network(e: Evidence) -> Finding | None:
    """The target is the online network: the case target networks were made against.

    Half a copy an update and more leave no delay. Source: Mnih et al. 2015, extended data table 3.
    """
    tau, every = e.number("policy.target_tau"), e.number("policy.target_update_every")
    if not e.replay or not (tau >= 0.5 or every <= 1):
        return None
    lag = e.metric("train/target_lag").last
    now = "" if math.isnan(lag) else f" (train/target_lag {lag:.1g})"
    key = f"policy.target_tau = {tau:g}" if tau >= 0.5 else "policy.target_update_every = 1"
    fix = e.set("policy.target_tau", 0.01) if tau >= 0.5 else (
        e.set("policy.target_update_every", 200)
    )  # fmt: skip
    return Finding(
        HARMFUL, f"The target network follows at once: {key}{now}.",
        "Targets move with every update, and errors feed themselves.",
        fix, ("train/target_lag", "train/q_taken"),
    )  # fmt: skip


@rule("target stands still", "no progress", "constant score")
def target_stands_still(e: Evidence) -> Finding | None:
    """Late in the run the target is still, mostly, the network before learning.

    After u updates a soft target has moved by 1 - (1 - tau)^u; below 0.5 most of it is initial.
    Fewer than 100 updates are a test of the command line.
    """
    updates = e.metric("train/updates").last
    tau, every = e.number("policy.target_tau"), e.number("policy.target_update_every")
    if not e.replay or not e.progress >= 0.25 or not updates >= 100:
        return None
    slow = 0 <= tau < 1 and (1 - tau) ** updates > 0.5
    if not (slow or every > updates):
        return None
    key = f"policy.target_tau = {tau:g}" if slow else f"policy.target_update_every = {every:.0f}"
    fix = e.set("policy.target_tau", f"{max(5 / updates, 0.005):.2g}") if slow else (
        e.set("policy.target_update_every", max(1, int(updates // 50)))
    )  # fmt: skip
    return Finding(
        BROKEN, f"The target network has hardly moved in {updates:.0f} updates: {key}.",
        "Values are learned from a network that knows nothing.",
        fix, ("train/target_lag", "train/updates"),
    )  # fmt: skip


@rule("learning rate gone", "no progress")
def learning_rate_gone(e: Evidence) -> Finding | None:
    """Adam's step fell below 1 % of its start before half of run.total_steps.

    The schedules of the presets are at half of their start there.
    """
    lr = e.metric("train/lr")
    small = lr.env_steps[lr.values < 0.01 * lr.first] if len(lr) else lr.env_steps
    if e.solved or not len(small) or not small[0] < 0.5 * e.total_steps:
        return None
    return Finding(
        HARMFUL, f"Learning stops early: train/lr is below 1 % of its start from {steps(small[0])} "
        f"on, of {e.total_steps:.0f}.",
        "The schedule is shorter than the run.",
        [*e.set("policy.lr.over", "null"), *e.set("policy.lr.kind", "constant")], ("train/lr",),
    )  # fmt: skip


@rule("large errors", "gradients clipped", "no progress", "loss grows", "explained variance")
def large_errors(e: Evidence) -> Finding | None:
    """TD errors of a hundred and more, half squared value errors of 10^5 and more.

    Networks start with outputs near 1 and Adam moves them by about lr a step: at lr 1e-3 values of
    hundreds take 10^5 updates. Healthy runs: below 10 (pendulum), value losses of 300 (cartpole).
    """
    td, value = e.metric("train/td_abs"), e.metric("train/value_loss")
    if e.solved or not (td.late > 100 or value.late > 1e5):
        return None
    name, size = ("train/td_abs", td.late) if td.late > 100 else ("train/value_loss", value.late)
    tries = [*e.scaled("policy.reward_scale", 0.01)]
    tries += e.set("policy.normalize_reward", "true") if e.on_policy else []
    return Finding(
        HARMFUL, f"Rewards are large for the networks: {name} is {size:.3g}.",
        "Values of hundreds take long to learn; rewards near 1 per step work best.",
        tries, (name, "collect/return_mean"),
    )  # fmt: skip


@rule("tiny rewards", "no progress", "overestimation")
def tiny_rewards(e: Evidence) -> Finding | None:
    """No return of more than 0.01 after scaling: below the noise of the initial values."""
    scale = e.number("policy.reward_scale")
    size = e.largest_return * (scale if scale > 0 else 1.0)
    if not e.learns or e.solved or not 0 < size < 0.01:
        return None
    return Finding(
        HARMFUL, f"Rewards are tiny for the networks: no scaled return is larger than {size:.2g}.",
        "They are small beside the initial values; rewards near 1 per step work best.",
        e.scaled("policy.reward_scale", 10.0 ** math.ceil(-math.log10(size))),
        ("collect/return_max", "train/target"),
    )  # fmt: skip


# -- buffer, priorities, windows, states, replay ratio ---------------------------------------------


@rule("small buffer", "late priorities", "forgetting", "no progress", "much replay")
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


@rule("early evictions", "small buffer")
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


@rule("much replay", "forgetting", "no progress", "dead units", "loss grows")
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


@rule("little replay", "no progress")
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


@rule("priorities collapsed", "no progress", "extreme weights")
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


@rule("extreme weights", "no progress")
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


@rule("stale states", "no progress")
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


@rule("padding")
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


@rule("rows lost", "no progress")
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


@rule("late priorities", "no progress")
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
    failed, damaged, interrupted, restarts, slow, no_updates, late_learning, rollbacks,
    large_step_size, overestimation, no_target_network, target_stands_still, large_errors,
    gradients_clipped, loss_grows, gradients_vanish, dead_units, learning_rate_gone,
    tiny_rewards, small_buffer, early_evictions, much_replay, little_replay,
    priorities_collapsed, extreme_weights, stale_states, padding, rows_lost, late_priorities,
)  # fmt: skip
