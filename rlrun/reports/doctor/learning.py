"""Rules on learning: losses, gradients, networks, targets. Thresholds are justified one by one."""

import math

import numpy as np

from rlrun.reports.doctor.evidence import Evidence
from rlrun.reports.doctor.finding import BROKEN, HARMFUL, Finding, Rule, steps


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


RULES = (
    Rule("no updates", no_updates, ("constant score", "no progress", "target stands still")),
    Rule("late learning", late_learning, ("no progress", "target stands still", "little replay")),
    Rule("rollbacks", rollbacks),
    Rule("large step size", large_step_size,
         ("overestimation", "loss grows", "dead units", "forgetting", "no progress", "large steps",
          "greedy is stuck", "gradients vanish", "one action", "entropy collapsed",
          "explained variance", "gradients clipped")),
    Rule("overestimation", overestimation,
         ("loss grows", "gradients clipped", "large errors", "forgetting", "no progress")),
    Rule("no target network", no_target_network,
         ("overestimation", "loss grows", "forgetting", "no progress")),
    Rule("target stands still", target_stands_still, ("no progress", "constant score")),
    Rule("large errors", large_errors, ("gradients clipped", "no progress", "loss grows",
                                        "explained variance")),
    Rule("gradients clipped", gradients_clipped, ("no progress",)),
    Rule("loss grows", loss_grows, ("forgetting", "no progress")),
    Rule("gradients vanish", gradients_vanish, ("no progress",)),
    Rule("dead units", dead_units, ("no progress", "forgetting")),
    Rule("learning rate gone", learning_rate_gone, ("no progress",)),
    Rule("tiny rewards", tiny_rewards, ("no progress", "overestimation")),
)  # fmt: skip
