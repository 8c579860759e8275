"""Symptoms of a run: a table with the evidence of each, continued in ``diagnosis``.

A row is a function under ``@symptom`` that reads `Evidence` and yields the symptom with its
numbers, or nothing. The symptom has the function's name. The function's docstring justifies its
thresholds. The order breaks ties of severity.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.reports.doctor.evidence import Evidence, steps
from rlrun.run.files import is_in_use
from rlrun.schema.run import CHECKPOINT_STEPS
from rlrun.trust import packages_of, resume_line

BROKEN, HARMFUL, NOTE = 3, 2, 1  # severities


@dataclass(frozen=True)
class Found:
    """A symptom with its numbers, what to try, its usual cause, and where to look.

    Rules leave out what does not depend on the run: "" and () mean the column of the row. A rule's
    ``tries`` are in the form of `Evidence.tries`, or overrides ``key=value`` and words on what to
    do, the likeliest first, as in what `Symptom.finding` returns.
    """

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

    def finding(self, evidence: Evidence) -> Found | None:
        """Return the row's finding in a run, or None. Metrics not recorded are left out."""
        if not all(getattr(evidence, word) for word in self.when.split()):
            return None
        for result in self.find(evidence):
            hit = Found(result) if isinstance(result, str) else result
            tries = hit.tries or self.tries
            tries = evidence.tries(tries) if isinstance(tries, str) else tries
            look = [m for m in (hit.look or self.look).split() if evidence.records_metric(m)]
            return Found(hit.symptom, tries, hit.why or self.why, " ".join(look))
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
            times = max(2, round(share / 0.1))
            # run.checkpoint_every=null: as many steps, and at least a second
            present = max(CHECKPOINT_STEPS, round(e.ended_at / total))
            rarer = f"{key}*{times}" if e.value(key) else f"{key}={times * present}"
            yield Found(
                f"{share:.0%} of the time goes into {what} ({seconds}).",
                f"{rarer}{fewer}",
                look=f"time/{part}_seconds time/env_steps_per_s",
            )


# -- losses, gradients, networks, targets ----------------------------------------------------------


@symptom(BROKEN, "learns", look="train/updates buffer/windows",
         explains="constant score, no progress, target stands still")  # fmt: skip
def no_updates(e: Evidence) -> Rows:
    """Rows were collected and no gradient step was taken."""
    updates = e.run.number("updates")  # of a run shorter than logger.every, without records
    if not e.env_steps or len(e.metric("train/updates")) or updates > 0:
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
    # SAC's Q includes the temperature times the entropy.
    sizes = (np.abs(e.metric(f"train/{name}").values) for name in ("temperature", "entropy"))
    bonus = math.prod(float(x.max(initial=0.0)) for x in sizes)
    reach = max(returns, per_step * horizon) * e.reward_scale + bonus * horizon
    eps = e.number("policy.value_rescale_eps")
    bound = math.sqrt(reach + 1) - 1 + eps * reach if eps > 0 else reach
    room = 10 if e.offline else 3
    if abs(q.late) > room * bound + 1 and not abs(q.late) < 1.5 * abs(q.early):
        seen = f"no return seen allows more than {bound:.3g}"
        yield f"Action values run away: train/q_taken is {q.late:.3g} {q.since}, and {seen}."


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
    if e.value("policy.normalize_reward"):
        tries = "policy.lr*0.3"
    else:
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
    if 0 < size < 0.01 and not e.value("policy.normalize_reward"):
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
