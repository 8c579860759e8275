"""Symptoms of a run: a table with the evidence of each, and the diagnosis.

A row is a function under ``@symptom`` that reads `Evidence` and yields the symptom with its
numbers, or nothing. The symptom has the function's name. The function's docstring justifies its
thresholds. The order breaks ties of severity.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.reports.doctor.evidence import Evidence, steps
from rlrun.reports.runs import RunData, finite, printable
from rlrun.run.files import is_in_use
from rlrun.terminal import paragraph
from rlrun.trust import packages_of, resume_line

BROKEN, HARMFUL, NOTE = 3, 2, 1  # severities


@dataclass(frozen=True)
class Finding:
    """A symptom with its numbers, its usual cause, and what to try.

    ``tries``: overrides ``key=value``, or a word on what to do, the likeliest first. ``metrics``:
    where to look.
    """

    severity: int
    symptom: str
    meaning: str
    tries: Sequence[str]
    metrics: Sequence[str]


@dataclass(frozen=True)
class Found:
    """A symptom whose other columns depend on the run, too; "" and () mean those of its row."""

    symptom: str
    tries: str | Sequence[str] = ""
    why: str = ""
    look: str = ""


Rows = Iterator[str | Found]
Find = Callable[[Evidence], Rows]


@dataclass(frozen=True)
class Symptom:
    """A row of the table. ``look``, ``when`` and ``tries`` are words; ``explains`` has commas.

    when: attributes of `Evidence` that must be true for the row to be checked.
    why: the usual meaning of the symptom. tries: in the form of `Evidence.tries`.
    look: metrics and files that show it. explains: symptoms that follow from it and are left out.
    """

    name: str
    find: Find
    severity: int
    when: str = ""
    why: str = ""
    tries: str = ""
    look: str = ""
    explains: str = ""

    def finding(self, evidence: Evidence) -> Finding | None:
        """Return the row's finding in a run, or None. Metrics that the run does not record are
        left out.
        """
        if not all(getattr(evidence, word) for word in self.when.split()):
            return None
        for got in self.find(evidence):
            found = Found(got) if isinstance(got, str) else got
            tries = found.tries or self.tries
            tries = evidence.tries(tries) if isinstance(tries, str) else tries
            look = [m for m in (found.look or self.look).split() if evidence.records_metric(m)]
            return Finding(self.severity, found.symptom, found.why or self.why, tries, look)
        return None


SYMPTOMS: list[Symptom] = []


def symptom(severity: int, when: str = "", **columns: str) -> Callable[[Find], None]:
    """Add the row of a function to the table."""

    def add(find: Find) -> None:
        name = find.__name__.replace("_", " ")
        SYMPTOMS.append(Symptom(name, find, severity, when, **columns))

    return add


# -- how the run went: failures, damage, time ------------------------------------------------------


def _resume_line(e: Evidence) -> str:
    packages = packages_of(e.run.record.get("command"), str(e.run.keys.get("env.id", "")))
    return resume_line(e.run.path, packages=packages)


@symptom(BROKEN, why="Its last line says what to do.", look="rlrun.log")
def failed(e: Evidence) -> Rows:
    """The run ended with an error, which rlrun.log has."""
    if e.run.status == "failed":
        error = e.run.failure or f"exit code {e.run.exit_code}"
        fix = f"{_resume_line(e)}, once that is done"
        yield Found(f"The run failed at {steps(e.ended_at)}: {error}", [fix])


@symptom(BROKEN, why="What follows the damage was not looked at.", look="metrics.jsonl",
         explains="no updates")  # fmt: skip
def damaged(e: Evidence) -> Rows:
    """Files cannot be read completely."""
    if what := e.run.problem or e.run.damage or e.run.damaged_times:
        fix = f"rlrun verify {e.run.path}"
        yield Found(f"Its files are damaged: {what.rstrip('.')}.", [fix])


@symptom(NOTE, why="A resumed run gives the same records as one that was not interrupted.",
         look="run.json")  # fmt: skip
def interrupted(e: Evidence) -> Rows:
    """The run was stopped by a signal or run.max_time and can be resumed."""
    go_on = _resume_line(e)
    if e.run.status == "interrupted":
        yield Found(f"It was interrupted at {steps(e.ended_at)} of {e.total_steps:.0f}.", [go_on])
    if e.run.status == "running" and not is_in_use(e.run.path):
        at = f"{steps(e.env_steps)} of {e.total_steps:.0f}"
        yield Found(f"It was killed at about {at}: no process runs it.", [go_on])
    if e.run.status == "not started" and e.policy and not e.env_steps:
        why = "It was interrupted while it started, or is starting."
        fix = f"{go_on}, unless it is starting"
        yield Found("It made no step: there is no run.json.", [fix], why, "rlrun.log")


@symptom(HARMFUL, tries="env.on_worker_failure=stop env.backend=sync",
         why="Each restart cuts an episode, which does not count; the first error is in rlrun.log.",
         look="collect/restarts eval/restarted_episodes rlrun.log")  # fmt: skip
def restarts(e: Evidence) -> Rows:
    """Environments were restarted after their process failed."""
    metrics = e.metric("collect/restarts"), e.metric("eval/restarted_episodes")
    if any(map(len, metrics)):
        times = sum(metric.values.sum() for metric in metrics)
        first = min(metric.env_steps[0] for metric in metrics if len(metric))
        yield f"Environments failed and were restarted {times:.0f} times, first by {steps(first)}."


_PARTS = ("collect", "add", "bonus", "sample", "update", "prioritize", "eval", "log", "checkpoint")
_SLOW_SECONDS = 60.0  # shorter runs need not be faster


@symptom(NOTE, why="Training waits for them.")
def slow(e: Evidence) -> Rows:
    """In a run of a minute or more, most of the time went into other work than training.

    Evaluation above 40 %, checkpoints above 15 %, records above 10 %: a longer period reduces each
    to less than a tenth.
    """
    total = sum(map(e.spent, _PARTS))
    if total < _SLOW_SECONDS or not math.isfinite(total):
        return
    for part, most, key, what in (
        ("eval", 0.4, "run.eval_every", "evaluations"),
        ("checkpoint", 0.15, "run.checkpoint_every", "checkpoints"),
        ("log", 0.1, "logger.every", "records"),
    ):
        share, seconds = e.spent(part) / total, f"{e.spent(part):.0f} of {total:.0f} seconds"
        if share > most:
            fewer = " run.eval_episodes*0.4" if part == "eval" else ""
            yield Found(
                f"{share:.0%} of the time goes into {what} ({seconds}).",
                f"{key}*{max(2, round(share / 0.1))}{fewer}",
                look=f"time/{part}_seconds time/env_steps_per_s",
            )


# -- losses, gradients, networks, targets ----------------------------------------------------------


@symptom(BROKEN, "learns", look="train/updates buffer/windows",
         explains="constant score, no progress, target stands still")  # fmt: skip
def no_updates(e: Evidence) -> Rows:
    """Rows were collected and no gradient step was taken."""
    if not e.env_steps or len(e.metric("train/updates")):
        return
    text, starts = f"It never learned: no update in {steps(e.env_steps)}.", e.learning_starts
    if not starts >= e.env_steps:
        why = "no window was ever complete, or updates are far apart."
        yield Found(text, "learner.replay_ratio=64", why)
    elif not (e.progress < 0.8 and starts < 0.5 * e.total_steps):  # else: not yet
        why = f"learner.learning_starts = {starts:.0f} was not reached."
        yield Found(text, "learner.learning_starts*0.1", why)


@symptom(HARMFUL, "replay collects unsolved", look="train/updates buffer/windows",
         why="Before that, rows are collected and nothing is learned from them.",
         explains="no progress, target stands still, little replay")  # fmt: skip
def late_learning(e: Evidence) -> Rows:
    """Learning starts at half of the run or later. The presets start at 0.1 to 5 % of the run."""
    starts, recorded = e.learning_starts, e.metric("train/updates").last
    if recorded > 0 and not e.improved and starts >= 0.5 * e.total_steps:
        updates = np.fmax(recorded, e.run.number("updates"))
        sooner = max(1, round(min(1000.0, 0.1 * e.total_steps)))
        yield Found(
            f"Learning starts late: learner.learning_starts = {starts:.0f} of {e.total_steps:.0f} "
            f"env steps, {updates:.0f} updates in all so far.",
            [*e.tries(f"learner.learning_starts={sooner}"), f"run.total_steps={20 * starts:.0f}"],
        )


@symptom(BROKEN, why="The loss diverges; going back helps only until it does so again.",
         tries="policy.lr*0.25 policy.max_grad_norm=10",
         look="train/loss train/grad_norm")  # fmt: skip
def rollbacks(e: Evidence) -> Rows:
    """The loss became NaN and the run went back to a checkpoint (run.on_nan=rollback)."""
    if (count := e.run.number("rollbacks")) >= 1:
        times = f"{count:.0f} time{'' if count == 1 else 's'}"
        yield f"The loss became NaN or infinite, and the run went back to a checkpoint: {times}."


@symptom(HARMFUL, "unsolved", look="train/lr train/loss eval/return_mean",
         why="One step of Adam changes each weight by about that much.",
         explains="overestimation, loss grows, dead units, forgetting, no progress, large steps, "
         "greedy is stuck, gradients vanish, one action, entropy collapsed, explained variance, "
         "gradients clipped")  # fmt: skip
def large_step_size(e: Evidence) -> Rows:
    """Adam's step size is 0.02 or more: ten times that of any preset, where Adam starts at 1e-3.

    A schedule that starts at 0.02 records a little less.
    """
    largest, most = e.metric("train/lr").values.max(initial=0.0), 0.0199
    if largest > most:
        tries = [] if e.number("policy.lr") <= most else e.tries("policy.lr=0.0005")
        tries += e.tries("policy.actor_lr=0.0003") if e.number("policy.actor_lr") > most else []
        yield Found(f"The step size is very large: train/lr {largest:.2g}.", tries)


@symptom(BROKEN, "replay", look="train/q_taken train/td_abs train/target_lag",
         why="Targets chase the network's own overestimates.",
         tries="policy.double=true policy.target_tau*0.25 policy.lr*0.3",
         explains="loss grows, gradients clipped, large errors, forgetting, no "
         "progress")  # fmt: skip
def overestimation(e: Evidence) -> Rows:
    """Action values are beyond the reach of any policy, and growing.

    Values are compared with the largest return seen, or the largest mean reward per step over a
    horizon of 1 / (1 - gamma), whichever is larger, in the units of the rescaled target. Three
    times that allows for better policies. For policies of a dataset, whose returns are not known,
    it is ten times. Overestimation grows without bound (van Hasselt et al. 2018, "Deep RL and the
    deadly triad": soft divergence is Q beyond the bound).
    """
    q, returns = e.metric("train/q_taken"), e.largest_return
    shaped = e.value("bonus.name") not in (None, "none") or e.value("policy.munchausen") is not None
    if shaped or len(q) < 6 or math.isnan(returns):
        return
    gamma = e.number("policy.gamma")
    length = e.metric("eval/length_mean" if e.offline else "collect/length_mean").late
    horizon = min(1e6, 1 / max(1e-6, 1 - gamma)) if gamma < 1 else 1e6
    per_step = returns / max(1.0, length) if length > 0 else 0.0
    reach = max(returns, per_step * horizon) * e.reward_scale + _entropy_bonus(e) * horizon
    eps = e.number("policy.value_rescale_eps")
    bound = math.sqrt(reach + 1) - 1 + eps * reach if eps > 0 else reach
    room = 10 if e.offline else 3
    if abs(q.late) > room * bound + 1 and not abs(q.late) < 1.5 * abs(q.early):
        seen = f"no return seen allows more than {bound:.3g}"
        yield f"Action values run away: train/q_taken is {q.late:.3g} {q.since}, and {seen}."


def _entropy_bonus(e: Evidence) -> float:
    """Return the addition of SAC's entropy to a reward: Q includes temperature times entropy."""
    weight, entropy = e.metric("train/temperature").values, e.metric("train/entropy").values
    return float(np.abs(weight).max(initial=0.0) * np.abs(entropy).max(initial=0.0))


@symptom(HARMFUL, "replay", look="train/target_lag train/q_taken",
         why="Targets move with every update, and errors feed themselves.",
         explains="overestimation, loss grows, forgetting, no progress")  # fmt: skip
def no_target_network(e: Evidence) -> Rows:
    """The target is the online network, the case that target networks are meant to prevent.

    Half a copy per update, or more, leaves no delay. Source: Mnih et al. 2015, extended data table
    3. CrossQ normalises instead.
    """
    if e.value("policy.name") == "crossq":
        return
    tau, every = e.number("policy.target_tau"), e.number("policy.target_update_every")
    lag = e.metric("train/target_lag").last
    now = "" if math.isnan(lag) else f" (train/target_lag {lag:.1g})"
    text = "The target network follows at once: policy."
    if tau >= 0.5:
        yield Found(f"{text}target_tau = {tau:g}{now}.", "policy.target_tau=0.01")
    elif every <= 1:
        yield Found(f"{text}target_update_every = 1{now}.", "policy.target_update_every=200")


@symptom(BROKEN, "replay", look="train/target_lag train/updates",
         why="Values are learned from a network that knows nothing.",
         explains="no progress, constant score")  # fmt: skip
def target_stands_still(e: Evidence) -> Rows:
    """Late in the run the target is still mostly the network before learning.

    After u updates a soft target has moved by 1 - (1 - tau)^u; below 0.5 most of it is initial.
    Runs with fewer than 100 updates only test a command line.
    """
    updates = e.metric("train/updates").last
    tau, every = e.number("policy.target_tau"), e.number("policy.target_update_every")
    text = f"The target network has hardly moved in {updates:.0f} updates: policy."
    if not e.progress >= 0.25 or not updates >= 100:
        return
    if 0 <= tau < 1 and (1 - tau) ** updates > 0.5:
        faster = f"policy.target_tau={max(5 / updates, 0.005):.2g}"
        yield Found(f"{text}target_tau = {tau:g}.", faster)
    elif every > updates:
        sooner = f"policy.target_update_every={max(1, int(updates // 50))}"
        yield Found(f"{text}target_update_every = {every:.0f}.", sooner)


@symptom(HARMFUL, "unsolved", look="train/td_abs train/value_loss",
         why="Values of hundreds take long to learn; rewards near 1 per step work best.",
         explains="gradients clipped, no progress, loss grows, explained variance")  # fmt: skip
def large_errors(e: Evidence) -> Rows:
    """TD errors of a hundred or more, or half squared value errors of 10^5 or more.

    Networks start with outputs near 1 and Adam moves them by about lr per step, so at lr 1e-3
    values of hundreds take 10^5 updates. Healthy runs: below 10 (pendulum), value losses of 300
    (cartpole).
    """
    tries = "policy.reward_scale*0.01" + " policy.normalize_reward=true" * e.on_policy
    for name, most in (("train/td_abs", 100), ("train/value_loss", 1e5)):
        if (size := e.metric(name).late) > most:
            text = f"Rewards are large for the networks: {name} is {size:.3g}."
            yield Found(text, tries, look=f"{name} collect/return_mean")


@symptom(HARMFUL, "replay unsolved", look="train/grad_norm train/td_abs",
         why="Rewards or errors are large for this step size.",
         tries="policy.reward_scale*0.1 policy.lr*0.3", explains="no progress")  # fmt: skip
def gradients_clipped(e: Evidence) -> Rows:
    """With a replay: gradients are always ten times ``max_grad_norm``.

    Then every step has the same length, whatever the error. For on-policy learners this is normal:
    PPO's norms are 60 to 90 at max_grad_norm=0.5 in a run that solves its task.
    """
    norm, clip = e.metric("train/grad_norm"), e.number("policy.max_grad_norm")
    if norm.late > 10 * clip:
        size = f"its norm is {norm.late:.3g} {norm.since}"
        yield f"Every gradient is cut to policy.max_grad_norm = {clip:g}: {size}."


@symptom(HARMFUL, "unsolved", look="train/loss train/td_abs train/q_taken",
         why="Steps are too large for these targets.",
         tries="policy.lr*0.25 policy.reward_scale*0.1", explains="forgetting, no "
         "progress")  # fmt: skip
def loss_grows(e: Evidence) -> Rows:
    """The loss grew a hundredfold and the score did not improve.

    Losses of learned values grow with the returns: tenfold in the healthy runs of the tests.
    """
    loss = e.metric("train/loss")
    if e.on_policy or e.improved or len(loss) < 9 or len(e.score) < 3:
        return
    if loss.early > 0 and loss.late > 100 * loss.early:
        yield f"The loss grew from {loss.early:.2g} to {loss.late:.2g}, and the score did not rise."


@symptom(HARMFUL, "learns unsolved", look="train/grad_norm train/dead_units train/td_abs",
         why="Units are saturated or dead, or every target equals every value.",
         tries="policy.lr*0.1 policy.reward_scale*10", explains="no progress")  # fmt: skip
def gradients_vanish(e: Evidence) -> Rows:
    """Gradients are float32 noise: below 1e-7, the precision of the numbers."""
    norm = e.metric("train/grad_norm")
    if norm.late < 1e-7:
        yield f"Gradients have vanished: their norm is {norm.late:.1g} {norm.since}."


@symptom(HARMFUL, "unsolved", look="train/dead_units train/grad_norm",
         why="Too large steps or too many updates per row pushed them out of range for good.",
         tries="policy.lr*0.3 learner.replay_ratio*0.5 torso.activation=elu",
         explains="no progress, forgetting")  # fmt: skip
def dead_units(e: Evidence) -> Rows:
    """More than 75 % of the hidden units are dead, or more than 60 % and many more than at first.

    An untrained ReLU network with few inputs has 20 to 57 % dormant units, and healthy runs keep
    that (measured). Sokar et al. 2023 see learning suffer if the share grows.
    """
    dead = e.metric("train/dead_units")
    value = dead.late if len(dead) >= 3 else dead.last
    if value > 0.75 or value > max(0.6, dead.first + 0.15):
        yield f"{value:.0%} of the hidden units are dead ({dead.first:.0%} at first)."


@symptom(HARMFUL, "unsolved", why="The schedule is shorter than the run.", look="train/lr",
         tries="policy.lr.over=null policy.lr.kind=constant", explains="no progress")  # fmt: skip
def learning_rate_gone(e: Evidence) -> Rows:
    """Adam's step fell below 1 % of its start before half of run.total_steps.

    The schedules of the presets are then at half of their start.
    """
    lr = e.metric("train/lr")
    small = lr.env_steps[lr.values < 0.01 * lr.first]
    if len(small) and small[0] < 0.5 * e.total_steps:
        since = f"from {steps(small[0])} on, of {e.total_steps:.0f}"
        yield f"Learning stops early: train/lr is below 1 % of its start {since}."


@symptom(HARMFUL, "learns unsolved", look="collect/return_max train/target",
         why="They are small beside the initial values; rewards near 1 per step work best.",
         explains="no progress, overestimation")  # fmt: skip
def tiny_rewards(e: Evidence) -> Rows:
    """No return is above 0.01 after scaling, which is below the noise of the initial values."""
    size = e.largest_return * e.reward_scale
    if 0 < size < 0.01:
        text = f"Rewards are tiny for the networks: no scaled return is larger than {size:.2g}."
        yield Found(text, f"policy.reward_scale*{10.0 ** math.ceil(-math.log10(size))}")


# -- buffer, priorities, windows, states, replay ratio ---------------------------------------------


@symptom(HARMFUL, "replay collects unsolved", look="buffer/sample_age buffer/windows buffer/fill",
         why="The network forgets what the buffer no longer holds.", tries="buffer.capacity*10",
         explains="late priorities, forgetting, no progress, much replay")  # fmt: skip
def small_buffer(e: Evidence) -> Rows:
    """A full buffer holds fewer than 20 batches and less than a tenth of what was collected.

    Every window is then sampled many times within a short past and forgotten. Source: Fedus et al.
    2020, "Revisiting Fundamentals of Experience Replay", figure 2 (more capacity, higher scores).
    """
    windows, batch = e.metric("buffer/windows").last, e.number("learner.batch_size")
    full, capacity = e.metric("buffer/fill").last >= 1, e.number("buffer.capacity")
    if full and windows < 20 * batch and capacity < 0.1 * e.env_steps:
        age = e.metric("buffer/sample_age").last
        old = f"; they are {age:.0f} env steps old, of {e.env_steps:.0f}" if age >= 0 else ""
        yield f"The buffer is small: {windows:.0f} windows for batches of {batch:.0f}{old}."


@symptom(HARMFUL, look="buffer/early_evictions buffer/windows",
         why="The table of windows is smaller than the rows allow.",
         tries="buffer.window_capacity=null", explains="small buffer")  # fmt: skip
def early_evictions(e: Evidence) -> Rows:
    """More than 5 % of the windows were dropped while their rows were still stored."""
    early, windows = e.metric("buffer/early_evictions").last, e.metric("buffer/windows").last
    if early > 0.05 * (early + windows):
        yield f"{early:.0f} windows were dropped before their rows; {windows:.0f} are kept."


@symptom(HARMFUL, "replay collects unsolved fails",
         look="train/replay_ratio train/td_abs train/dead_units",
         why="The networks overfit to early data.",
         explains="forgetting, no progress, dead units, loss grows")  # fmt: skip
def much_replay(e: Evidence) -> Rows:
    """A thousand rows are learned per row collected, and the score falls or does not rise.

    That is four updates of 256 rows per env step, from which on networks overfit early data without
    resets (Nikishin et al. 2022, "The Primacy Bias"; D'Oro et al. 2023). Presets have 32 to 256.
    """
    ratio = e.metric("train/replay_ratio").late
    if ratio > 1000:
        text = f"{ratio:.0f} rows are learned for each row collected; the score does not rise."
        keys = ("learner.replay_ratio", "learner.update_per_collect")
        yield Found(text, " ".join(f"{key}*{100 / ratio}" for key in keys))


@symptom(HARMFUL, "replay collects unsolved", look="train/replay_ratio train/updates",
         why="More updates cost compute time but no env steps.", tries="learner.replay_ratio=64",
         explains="no progress")  # fmt: skip
def little_replay(e: Evidence) -> Rows:
    """Fewer than one row in four is ever learned.

    R2D2 and Ape-X learn 0.8 to 1.3 rows per row with hundreds of actors, with which rows are cheap.
    """
    ratios = e.metric("train/replay_ratio").values
    if len(ratios) and ratios.mean() < 0.25:
        mean = f"{ratios.mean():.2g}"
        yield f"{mean} rows are learned for each row collected: most are never used."


@symptom(HARMFUL, "unsolved", look="buffer/priority_ess buffer/priority_max buffer/priority_mean",
         why="A few windows with large errors are in every batch; others are hardly seen.",
         explains="no progress, extreme weights")  # fmt: skip
def priorities_collapsed(e: Evidence) -> Rows:
    """The effective sample size of all stored windows is smaller than one batch, and below 5 %."""
    ess, windows = e.metric("buffer/priority_ess"), e.metric("buffer/windows").late
    if ess.late < 0.05 and ess.late * windows < e.number("learner.batch_size"):
        scalar = e.value("policy.distribution") in (None, "none")
        like = f"{max(1.0, ess.late * windows):.0f} ({ess.late:.2%}) {ess.since}"
        yield Found(
            f"Priorities have collapsed: {windows:.0f} windows are sampled like {like}.",
            "buffer.alpha*0.5" + " policy.td_clip=1" * scalar + " policy.priority_eta*0.5",
        )


@symptom(HARMFUL, "unsolved", look="buffer/weight_spread buffer/beta buffer/priority_ess",
         why="Rare windows with tiny priorities have nearly all the weight.",
         tries="buffer.alpha*0.5 buffer.beta.end*0.5", explains="no progress")  # fmt: skip
def extreme_weights(e: Evidence) -> Rows:
    """Importance weights spread by twice their mean, which gives an effective batch of a fifth.

    Kish 1965: weights of coefficient of variation c leave n / (1 + c^2) of n samples.
    """
    spread = e.metric("buffer/weight_spread").late
    if spread > 2:
        counts = f"a batch counts like {1 / (1 + spread * spread):.0%} of its windows"
        yield f"Importance weights are extreme: spread {spread:.2g} times their mean, so {counts}."


@symptom(HARMFUL, "unsolved", look="train/delta_q_zero_last train/delta_q_stored_last",
         why="Burn-in is too short, or the stored states are from much older networks.",
         explains="no progress")  # fmt: skip
def stale_states(e: Evidence) -> Rows:
    """At the last learned row Q still differs by half from Q of the true state.

    R2D2, figure 1, has 0.02 to 0.2 with stored states and burn-in. 90 runs of repeat_previous have
    0.01 to 0.14 with burn-in and 0.16 to 0.3 without. Relative to max Q it can be large where Q is
    near 0 (tmaze), so runs whose score rises are left out.
    """
    state = "zero" if e.value("policy.state_init") == "zero" else "stored"
    name = f"train/delta_q_{state}_last"
    gap, burnin = e.metric(name), e.number("policy.burnin_step")
    if gap.late > 0.5 and not e.thrives:
        longer = max(4, round(2 * burnin)) if burnin >= 0 else 4
        yield Found(
            "Windows start from wrong states: at their last learned row Q is off by "
            f"{gap.late:.0%} ({name}) {gap.since}.",
            f"policy.state_init=stored policy.burnin_step={longer} buffer.capacity*0.5",
            look=f"{name} buffer/sample_age",
        )


@symptom(NOTE, why="Updates spend their time on padding; no row is lost.",
         look="train/valid_fraction")  # fmt: skip
def padding(e: Evidence) -> Rows:
    """More than half of the learned positions are padding."""
    valid, length = e.metric("train/valid_fraction").late, e.metric("collect/length_mean").late
    unroll, nstep = e.number("policy.learn_unroll_len"), e.number("policy.nstep")
    if valid < 0.5 and unroll > 0:
        least = nstep + 1 if nstep >= 1 else 1
        shorter = max(least, min(unroll / 2, length) if length > 0 else unroll / 2)
        yield Found(
            f"Windows are mostly padding: {valid:.0%} of their learned positions are steps; "
            f"episodes have {length:.0f} steps, windows {unroll:.0f}.",
            f"policy.learn_unroll_len={int(shorter)}",
        )


@symptom(HARMFUL, "collects", why="Ends of episodes fill no window and are dropped.",
         look="buffer/learned_fraction", explains="no progress")  # fmt: skip
def rows_lost(e: Evidence) -> Rows:
    """More than a fifth of all steps is in no window, and open episodes explain little of it."""
    part, length = e.metric("buffer/learned_fraction").last, e.metric("collect/length_mean").late
    open_rows = e.number("collector.num_envs") * max(length, 1.0)
    if part < 0.8 and not open_rows > 0.05 * e.env_steps:
        residual = " collector.residual=null_padding" * (e.value("collector.tiling") == "plain")
        text = f"Only {part:.0%} of the collected steps can be learned from."
        yield Found(text, f"collector.tiling=lossless{residual}")


@symptom(HARMFUL, why="The buffer turns over within a few updates.", tries="buffer.capacity*10",
         look="buffer/late_priorities buffer/fill", explains="no progress")  # fmt: skip
def late_priorities(e: Evidence) -> Rows:
    """More than 1 % of the priorities arrived after their windows were overwritten."""
    late, updates = e.metric("buffer/late_priorities").last, e.metric("train/updates").last
    share = late / max(1.0, updates * e.number("learner.batch_size"))
    if share > 0.01:
        yield f"{share:.0%} of all priorities came back after their window was overwritten."


# -- the horizon, exploration, on-policy updates ---------------------------------------------------

_SCHEDULES = {
    "policy.lr": "train/lr", "explore.epsilon": "collect/epsilon_mean",
    "buffer.beta": "buffer/beta", "policy.noise": "train/noise",
    "policy.clip_range": "train/clip_fraction",
}  # fmt: skip
_RECURRENT = {
    "dqn": "policy=r2d2", "sac": "policy=rsac", "tqc": "policy=rsac", "crossq": "policy=rsac",
    "td3": "policy=rtd3", "ddpg": "policy=rtd3", "bc": "policy=bc_recurrent",
}  # fmt: skip
_FEW_ROWS = 50  # of a record; the entropy of one action is 0


def _looks_ahead(e: Evidence, horizon: str, gamma: float, length: float) -> str:
    ahead = f"It looks {horizon} ahead, policy.gamma = {gamma:g}"
    return f"{ahead}, and episodes have {length:.0f} steps; {_score_text(e)}"


def _score_text(e: Evidence) -> str:
    return f"the score is {e.score.last:.4g}, {e.score.first:.4g} at first."


@symptom(HARMFUL, "learns unsolved", look="collect/length_mean train/q_taken eval/return_mean",
         why="Rewards that come later count almost nothing: the horizon is 1 / (1 - gamma) steps.",
         tries="policy.state_init=stored policy.gamma=0.99",
         explains="forgetting, no progress, greedy is stuck, one action, gradients vanish, "
         "entropy collapsed, explained variance, much replay")  # fmt: skip
def short_horizon(e: Evidence) -> Rows:
    """Episodes are five times as long as the horizon 1 / (1 - gamma), and the score is bad.

    Rewards k steps away count gamma^k, so five horizons away less than 1 %. Presets have 0.99 to
    0.999. Tasks with immediate rewards are solved with any gamma. So the rule only applies to runs
    whose score does not rise, falls again, or stays below that of the first actions. It does not
    apply before a quarter of the run, or if an experiment or the environment chose gamma for its
    task.
    """
    gamma, length = e.number("policy.gamma"), e.metric("collect/length_mean").median
    early = len(e.score) < 3 or not e.progress >= 0.25
    if early or not 0 <= gamma < 0.95 or e.preset("policy.gamma"):
        return
    weak = e.fails or e.score.late <= e.metric("collect/return_mean").first
    horizon = 1 / (1 - gamma)
    if weak and length > 5 * horizon:
        yield _looks_ahead(e, f"{horizon:.3g} steps", gamma, length)


@symptom(HARMFUL, "learns unsolved fails_late",
         look="collect/length_mean train/q_taken eval/return_mean",
         why="Values are sums over the whole horizon: they take long to learn, and a single action "
         "hardly changes them.",
         explains="no progress, forgetting, one action")  # fmt: skip
def long_horizon(e: Evidence) -> Rows:
    """The horizon 1 / (1 - gamma) is above 2000 steps and five episodes, and the score is bad.

    No preset has a horizon above 1000 steps. Values of a task whose episodes are cut by a time
    limit must grow to the rewards of a whole horizon, in which the value of one action is lost.
    """
    gamma, length = e.number("policy.gamma"), e.metric("collect/length_mean").median
    horizon = 1 / (1 - gamma) if gamma < 1 else math.inf
    if gamma > 0.9995 and horizon > 5 * length:
        far = "without end" if math.isinf(horizon) else f"{horizon:.0f} steps"
        shorter = f"policy.gamma={min(0.997, max(0.9, 1 - 1 / max(1.0, length))):.3g}"
        yield Found(_looks_ahead(e, far, gamma, length), [shorter])


@symptom(HARMFUL, "replay unsolved fails_late",
         look="collect/length_mean train/target eval/return_mean", tries="policy.nstep=3",
         why="Replayed returns of many rows are those of old, exploring policies.",
         explains="no progress, forgetting, one action")  # fmt: skip
def long_returns(e: Evidence) -> Rows:
    """Returns from a replay sum ten rows of reward or more before a value, and the score is bad.

    Such returns belong to the policy that collected, with its exploration, not to the one that
    learns. 1 to 5 rows are best (Hessel et al. 2018, figure 4 of Rainbow's ablations;
    Hernandez-Garcia and Sutton 2019). Presets have 1 to 5.
    """
    nstep, length = e.number("policy.nstep"), e.metric("collect/length_mean").median
    if nstep >= 10:
        whole = ", longer than most episodes" if nstep > length else ""
        yield f"Returns of policy.nstep = {nstep:.0f} rows are learned{whole}; {_score_text(e)}"


@symptom(HARMFUL, "value_based unsolved", look="collect/epsilon_mean collect/return_mean",
         why="Long episodes are never played to the end by the policy itself.",
         explains="schedule outlasts run, no progress")  # fmt: skip
def still_exploring(e: Evidence) -> Rows:
    """At 80 % of the run more than 30 % of the actions are still random.

    Schedules end at 0.01 to 0.1 (Mnih et al. 2015); the ladder has a mean of 0.07.
    """
    epsilon, constant = e.metric("collect/epsilon_mean").last, finite(e.value("explore.epsilon"))
    if e.progress >= 0.8 and epsilon > 0.3:
        if e.value("explore.epsilon.kind") == "constant":
            constant = e.number("explore.epsilon")
        fixed = f": explore.epsilon = {constant:g} for good" if constant >= 0 else ""
        text = f"{epsilon:.0%} of the actions are still random after {steps(e.env_steps)}{fixed}."
        yield Found(text, [*_decay(e), *e.tries("explore.base_epsilon*0.5")])


@symptom(HARMFUL, "value_based collects unsolved", why="The policy repeats what it did first.",
         look="collect/epsilon_mean collect/action_entropy",
         explains="one action, no progress")  # fmt: skip
def no_exploration(e: Evidence) -> Rows:
    """In the first tenth of the run fewer than 2 % of the actions are random.

    Mnih et al. 2015 explore with more than 10 % for the first million of 50 million frames.
    """
    epsilon = e.metric("collect/epsilon_mean")
    soon = epsilon.values[epsilon.env_steps <= 0.1 * e.total_steps]
    if len(soon) and soon[-1] < 0.02 and not e.number("policy.noisy") > 0:
        at = f"{steps(epsilon.env_steps[len(soon) - 1])} of {e.total_steps:.0f}"
        text = f"Exploration was over at once: {soon[-1]:.1%} random actions at {at}."
        yield Found(text, [*_decay(e), "explore=ladder"])


def _decay(e: Evidence) -> list[str]:
    """Return overrides with an epsilon that falls over a third of the run; none for the ladder."""
    if e.value("explore.name") != "schedule":
        return []
    over = max(1, int(0.3 * e.total_steps)) if e.total_steps > 0 else 10_000
    if e.value("explore.epsilon.kind") not in ("linear", "exponential", "cosine"):
        return [f"'explore.epsilon={{kind:linear,start:1,end:0.05,over:{over}}}'"]
    return e.tries(f"explore.epsilon.over={over}")


@symptom(NOTE, "unsolved", why="The run ends in the middle of the schedule.")
def schedule_outlasts_run(e: Evidence) -> Rows:
    """A schedule is at least 1.5 times as long as the run."""
    for key, metric in _SCHEDULES.items():
        over, kind = e.number(f"{key}.over"), e.value(f"{key}.kind")
        if e.matters(key) and kind in ("linear", "cosine") and over > 1.5 * e.total_steps > 0:
            total = f"run.total_steps is {e.total_steps:.0f}"
            text = f"{key} changes over {over:.0f} env steps, {total}."
            yield Found(text, f"{key}.over=null", look=metric)


@symptom(HARMFUL, "on_policy unsolved", why="It became certain before it found the reward.",
         look="train/entropy collect/action_entropy",
         explains="one action, no progress")  # fmt: skip
def entropy_collapsed(e: Evidence) -> Rows:
    """An on-policy learner acts almost deterministically and has not solved its task.

    Both the entropy of its policy (0.02 nats: one of two actions has 99.7 %) and that of its
    actions are low. A policy whose score rose and holds is certain for a reason.
    """
    entropy, taken = e.metric("train/entropy"), e.metric("collect/action_entropy")
    if 0 <= entropy.late < 0.02 and taken.late < 0.1 and not e.thrives:
        now = f"{entropy.late:.2g} nats {entropy.since} ({entropy.first:.2g} at first)"
        more = "*3" if e.number("policy.entropy_coef") > 0 else "=0.02"
        tries = f"policy.entropy_coef{more} policy.lr*0.3"
        yield Found(f"The policy has stopped exploring: entropy {now}.", tries)


@symptom(HARMFUL, "learns unsolved", look="collect/action_entropy collect/epsilon_mean",
         why="Values or the policy are saturated, or nothing explores.",
         explains="no progress")  # fmt: skip
def one_action(e: Evidence) -> Rows:
    """Almost all actions are equal: entropy below 2 % of the largest.

    An epsilon of 0.01 over two actions alone gives 4.5 %. One action can be the best policy, so
    runs whose score rose and holds are left out.
    """
    taken = e.metric("collect/action_entropy")
    rows = np.median(np.diff(taken.env_steps)) if len(taken) > 1 else 0
    if rows >= _FEW_ROWS and taken.late < 0.02 and not e.thrives:
        now = f"{taken.late:.1%} of the largest {taken.since}"
        tries = "policy.entropy_coef*3 " * e.on_policy + "explore.epsilon.end=0.05 policy.lr*0.3"
        yield Found(f"It takes one action only: action entropy {now}.", tries)


@symptom(HARMFUL, "unsolved", look="train/approx_kl train/clip_fraction",
         why="Too many or too large steps on one rollout.",
         tries="policy.lr*0.3 policy.epochs*0.5 policy.target_kl=0.03",
         explains="no progress, forgetting")  # fmt: skip
def large_steps(e: Evidence) -> Rows:
    """PPO: the KL is above 0.1, or half of the rows are clipped.

    target_kl is 0.01 to 0.05 in practice (Dossa et al. 2021); healthy runs have 0.001 to 0.01.
    """
    kl, clipped = e.metric("train/approx_kl").late, e.metric("train/clip_fraction").late
    if kl > 0.1 or clipped > 0.5:
        yield f"Updates leave the trust region: KL {kl:.2g}, {clipped:.0%} of rows clipped."


@symptom(HARMFUL, "unsolved", look="train/explained_variance train/value_loss",
         why="Advantages are noise then; values need larger steps, or rewards of another scale.",
         tries="policy.normalize_reward=true policy.value_coef*2 policy.separate_value=true",
         explains="no progress")  # fmt: skip
def explained_variance(e: Evidence) -> Rows:
    """Late in the run the value explains nothing of the returns (0: a constant, 1: everything)."""
    explained = e.metric("train/explained_variance")
    if len(explained) >= 10 and explained.late < 0.02 and e.span != 0:
        now = f"{explained.late:.2g} {explained.since}"
        yield f"The value explains nothing: explained variance {now}."


# -- the score -------------------------------------------------------------------------------------


@symptom(HARMFUL, "unsolved", look="eval/return_mean collect/return_mean eval/length_mean",
         why="The greedy policy gets stuck where random actions go on, or evaluation differs "
         "(env.eval_kwargs).",
         tries="explore.epsilon.end*0.3 run.total_steps*2",
         explains="no progress, forgetting")  # fmt: skip
def greedy_is_stuck(e: Evidence) -> Rows:
    """The greedy policy scores less than the exploring one by 30 % of the whole range of scores.

    Some noise frees a policy that runs in circles; the policy itself has not learned to leave them.
    """
    collected, score = e.metric("collect/return_mean").late, e.score
    gap = collected - score.late
    if len(score) >= 5 and gap > 0.3 * e.span and gap > 2 * e.noise:
        both = f"{score.late:.4g} against {collected:.4g} {score.since}"
        yield f"Evaluation is below what exploring episodes get: {both}."


@symptom(NOTE, look="eval/cut_episodes eval/length_mean",
         why="Their returns are those of a part; training may have such episodes, too.",
         tries="env.max_episode_steps=1000", explains="slow")  # fmt: skip
def endless_episodes(e: Evidence) -> Rows:
    """Evaluation episodes were cut because they did not end.

    Without stop_return the largest return is no sign of a solved task if its episodes were cut.
    """
    cut, limit = e.metric("eval/cut_episodes"), e.number("eval.max_episode_steps")
    at_last = len(cut) and len(e.score) and cut.env_steps[-1] >= e.score.env_steps[-1]
    if cut.last > 0 and (e.unsolved or (at_last and math.isnan(e.run.stop_return))):
        when = f"within {limit:.0f} steps, last at {steps(cut.env_steps[-1])}"
        yield f"{cut.last:.0f} evaluation episodes did not end {when}."


@symptom(HARMFUL, "unsolved", look="eval/return_mean eval/best_return_mean buffer/sample_age",
         why="The policy forgets; the best weights are kept in checkpoints/best.safetensors.",
         tries="policy.lr*0.3 buffer.capacity*3 policy.target_kl=0.03",
         explains="no progress")  # fmt: skip
def forgetting(e: Evidence) -> Rows:
    """More than half of the largest gain was lost again, beyond the noise of evaluations."""
    if e.lost > 0.5:
        best, after = int(np.argmax(e.score.values)), e.after_best
        top = f"{e.score.values[best]:.4g} at {steps(e.score.env_steps[best])}"
        now = f"{after.median:.4g} from {steps(after.env_steps[0])} on"
        yield f"The score fell: {top}, {now}."


@symptom(BROKEN, "learns collects unsolved", look="collect/return_max collect/action_entropy",
         why="The reward was never found, so there is nothing to learn from.",
         explains="no progress, explained variance, gradients vanish, greedy is stuck")  # fmt: skip
def constant_score(e: Evidence) -> Rows:
    """At least fifty episodes, from two evaluations and exploring, all had the same return."""
    least, most = e.returns
    count = len(e.score) * e.number("run.eval_episodes") + e.metric("collect/episodes").last
    if len(e.score) >= 2 and least == most and not count < 50:
        over = f"in {len(e.score)} evaluations over {steps(e.env_steps)}"
        tries = ["bonus=rnd", *e.tries("explore.epsilon.over*3 run.total_steps*5")]
        scaled = e.tries("policy.normalize_obs=true policy.normalize_reward=true")
        if e.on_policy and scaled:  # PPO finds the goal of MountainCar with both, not with RND
            tries = [" ".join(scaled), *tries]
        yield Found(f"Every episode had the return {e.score.last:.4g}, {over}.", tries)


@symptom(HARMFUL, "learns unsolved", look="eval/return_mean collect/return_max train/loss",
         why="No other symptom was found: the step size, exploration or the length of the run may "
         "be wrong, or the task needs a memory.")  # fmt: skip
def no_progress(e: Evidence) -> Rows:
    """Late evaluations are not above the early ones, at half of the run or later."""
    if e.improved or e.thrives or len(e.score) < 6 or not e.progress >= 0.5:
        return
    first, best = e.score.early, float(e.score.values.max())
    if best - first > 3 * e.best_noise and e.score.late > first:
        return
    if e.offline and np.ptp(e.returns) == 0:
        return  # good from the start, or never: returns of the data are unknown
    tries = e.tries("policy.state_init=stored")
    if e.value("memory.name") in (None, "none"):
        tries += ["memory=lstm"] if e.on_policy else _RECURRENT.get(e.policy, "").split()
    now = f"{e.score.late:.4g} {e.score.since}, {first:.4g} at first, its best {best:.4g}"
    yield Found(
        f"No progress, unless no score can be higher: it is {now}.",
        [*tries, *e.tries("policy.lr*0.3 run.total_steps*3")],
    )


# -- the diagnosis ---------------------------------------------------------------------------------

_FEW = 3  # fewest records for a statement on learning
_EVENTS = {"collect/restarts", "eval/restarted_episodes", "eval/cut_episodes"}  # rarely recorded


def diagnose(run: RunData) -> dict[str, Finding]:
    """Return the findings by the name of their symptom, the most severe first.

    A finding that another one explains is left out.
    """
    return _diagnose(Evidence(run))


def _diagnose(evidence: Evidence) -> dict[str, Finding]:
    with np.errstate(all="ignore"):  # numbers of untrusted files may have any size
        every = {row.name: row.finding(evidence) for row in SYMPTOMS}
    found = {name: finding for name, finding in every.items() if finding is not None}
    explained = {x for row in SYMPTOMS if row.name in found for x in row.explains.split(", ")}
    kept = {name: finding for name, finding in found.items() if name not in explained}
    return dict(sorted(kept.items(), key=lambda item: -item[1].severity))


def report_lines(run: RunData) -> Iterator[str]:
    """Yield the lines that ``rlrun doctor`` prints on a run."""
    evidence = Evidence(run)
    found = _diagnose(evidence)
    records = max((len(x) for x, _ in evidence.records.columns.values()), default=0)
    what = f"{records} record{'' if records == 1 else 's'} up to {evidence.env_steps:.0f} env steps"
    if not found and records < _FEW and evidence.learns and evidence.unsolved:
        yield paragraph(f"{run.name}: too early to say; {what}")
        return
    if not found:
        checked = sum(_has_records(row, evidence) for row in SYMPTOMS)
        yield paragraph(
            f"{run.name}: nothing looks wrong; {checked} of {len(SYMPTOMS)} rules had something to "
            f"look at in {what} (rlrun help health)"
        )
        return
    count = f"{len(found)} finding{'s' if len(found) > 1 else ''}"
    yield paragraph(f"{run.name}: {count}; {what}, status {run.status}")
    for number, finding in enumerate(found.values(), 1):
        yield _wrapped(f"{number}. ", finding.symptom)
        yield _wrapped("   why:  ", finding.meaning)
        if finding.tries:
            yield _wrapped("   try:  ", ", or ".join(finding.tries))
        if finding.metrics:
            yield _wrapped("   look: ", ", ".join(finding.metrics))


def _has_records(row: Symptom, evidence: Evidence) -> bool:
    """Return whether a run records a metric of a row. True for a row that needs none."""
    metrics = [name for name in row.look.split() if name not in _EVENTS]
    return not metrics or any(map(evidence.records_metric, metrics))


def _wrapped(head: str, text: str) -> str:
    return paragraph(head, printable(text))
