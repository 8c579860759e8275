"""Rules on the horizon, exploration, on-policy updates, and the score."""

import math

import numpy as np

from rlrun.reports.doctor.evidence import BROKEN, HARMFUL, NOTE, Evidence, Finding, rule, steps
from rlrun.reports.runs import finite

_SCHEDULES = {
    "policy.lr": "train/lr", "explore.epsilon": "collect/epsilon_mean",
    "buffer.beta": "buffer/beta", "policy.noise": "train/noise",
    "policy.clip": "train/clip_fraction",
}  # fmt: skip
_RECURRENT = {
    "dqn": "policy=r2d2", "sac": "policy=rsac", "td3": "policy=rtd3", "ddpg": "policy=rtd3",
    "bc": "policy=bc_recurrent",
}  # fmt: skip
_FEW_ROWS = 50  # of a record; the entropy of one action is 0


@rule(
    "short horizon", "forgetting", "no progress", "greedy is stuck", "one action",
    "gradients vanish", "entropy collapsed", "explained variance", "much replay",
)  # fmt: skip
def short_horizon(e: Evidence) -> Finding | None:
    """Episodes are five times as long as the horizon 1 / (1 - gamma), and the score does not hold.

    Rewards k steps away count gamma^k, so five horizons away by less than 1 %. Presets have 0.99 to
    0.999. Tasks whose actions are rewarded at once are solved with any gamma, so only runs of which
    the score does not rise, falls again, or stays below what the first actions got, are accused,
    not before a quarter of the run, and not where an experiment chose gamma for its task.
    """
    gamma, length = e.number("policy.gamma"), e.metric("collect/length_mean").median
    early = len(e.score) < 3 or not e.progress >= 0.25
    if not e.learns or e.solved or early or not 0 <= gamma < 0.95 or e.preset("policy.gamma"):
        return None
    weak = e.fails or e.score.late <= e.metric("collect/return_mean").first
    horizon = 1 / (1 - gamma)
    if not weak or not length > 5 * horizon:
        return None
    return Finding(
        HARMFUL, f"It looks {horizon:.3g} steps ahead, policy.gamma = {gamma:g}, and episodes have "
        f"{length:.0f} steps; the score is {e.score.last:.4g}, {e.score.first:.4g} at first.",
        "Rewards that come later count almost nothing: the horizon is 1 / (1 - gamma) steps.",
        [*e.set("policy.state_init", "stored"), "policy.gamma=0.99"],
        ("collect/length_mean", "train/q_taken", "eval/return_mean"),
    )  # fmt: skip


@rule("long horizon", "no progress", "forgetting", "one action")
def long_horizon(e: Evidence) -> Finding | None:
    """The horizon 1 / (1 - gamma) is above 2000 steps and five episodes, and the score is bad.

    No preset looks further than 1000 steps. Values of a task whose episodes are cut by a time limit
    must grow to the rewards of a whole horizon, and the value of one action is lost in them.
    """
    gamma, length = e.number("policy.gamma"), e.metric("collect/length_mean").median
    if not e.learns or e.solved or len(e.score) < 3 or not e.progress >= 0.25 or not e.fails:
        return None
    horizon = 1 / (1 - gamma) if gamma < 1 else math.inf
    if not (gamma > 0.9995 and horizon > 5 * length):
        return None
    far = "without end" if math.isinf(horizon) else f"{horizon:.0f} steps"
    shorter = min(0.997, max(0.9, 1 - 1 / max(1.0, length)))
    return Finding(
        HARMFUL, f"It looks {far} ahead, policy.gamma = {gamma:g}, and episodes have {length:.0f} "
        f"steps; the score is {e.score.last:.4g}, {e.score.first:.4g} at first.",
        "Values are sums over the whole horizon: they take long to learn, and a single action "
        "hardly changes them.",
        [f"policy.gamma={shorter:.3g}"],
        ("collect/length_mean", "train/q_taken", "eval/return_mean"),
    )  # fmt: skip


@rule("long returns", "no progress", "forgetting", "one action")
def long_returns(e: Evidence) -> Finding | None:
    """Ten rows of reward or more before a value, from a replay, and the score does not hold.

    Such returns are those of the policy that collected, exploration included, not of the one that
    learns: 1 to 5 rows are best (Hessel et al. 2018, figure 4 of Rainbow's ablations; Hernandez-
    Garcia and Sutton 2019). Presets have 1 to 5.
    """
    nstep, length = e.number("policy.nstep"), e.metric("collect/length_mean").median
    if not e.replay or e.solved or len(e.score) < 3 or not e.progress >= 0.25 or not e.fails:
        return None
    if not nstep >= 10:
        return None
    whole = ", longer than most episodes" if nstep > length else ""
    return Finding(
        HARMFUL, f"Returns of policy.nstep = {nstep:.0f} rows are learned{whole}; the score is "
        f"{e.score.last:.4g}, {e.score.first:.4g} at first.",
        "Replayed returns of many rows are those of old, exploring policies.",
        ["policy.nstep=3"], ("collect/length_mean", "train/target", "eval/return_mean"),
    )  # fmt: skip


@rule("still exploring", "schedule outlasts run", "no progress")
def still_exploring(e: Evidence) -> Finding | None:
    """At 80 % of the run more than 30 % of the actions are still random.

    Schedules end at 0.01 to 0.1 (Mnih et al. 2015), the ladder has a mean of 0.07.
    """
    epsilon, constant = e.metric("collect/epsilon_mean").last, _constant_epsilon(e)
    if e.solved or not e.value_based or not (e.progress >= 0.8 and epsilon > 0.3):
        return None
    fixed = f": explore.epsilon = {constant:g} for good" if constant >= 0 else ""
    return Finding(
        HARMFUL,
        f"{epsilon:.0%} of the actions are still random after {steps(e.env_steps)}{fixed}.",
        "Long episodes are never played to the end by the policy itself.",
        [*_decay(e), *e.scaled("explore.eps", 0.5)],
        ("collect/epsilon_mean", "collect/return_mean"),
    )  # fmt: skip


@rule("no exploration", "one action", "no progress")
def no_exploration(e: Evidence) -> Finding | None:
    """Within the first tenth of the run fewer than 2 % of the actions are random.

    Mnih et al. 2015 explore with more than 10 % for the first million of 50 million frames.
    """
    epsilon, noisy = e.metric("collect/epsilon_mean"), e.number("policy.noisy") > 0
    soon = epsilon.values[epsilon.env_steps <= 0.1 * e.total_steps]
    if e.solved or not e.value_based or noisy or e.offline or not len(soon) or soon[-1] >= 0.02:
        return None
    return Finding(
        HARMFUL, f"Exploration was over at once: {soon[-1]:.1%} random actions at "
        f"{steps(float(epsilon.env_steps[len(soon) - 1]))} of {e.total_steps:.0f}.",
        "The policy repeats what it did first.",
        [*_decay(e), "explore=ladder"],
        ("collect/epsilon_mean", "collect/action_entropy"),
    )  # fmt: skip


def _decay(e: Evidence) -> list[str]:
    """An epsilon that falls over a third of the run; nothing for the ladder, which has none."""
    if e.value("explore.name") != "schedule":
        return []
    over = max(1, int(0.3 * e.total_steps)) if e.total_steps > 0 else 10_000
    if e.value("explore.epsilon.kind") not in ("linear", "exponential", "cosine"):
        return [f"'explore.epsilon={{kind:linear,start:1,end:0.05,over:{over}}}'"]
    return e.set("explore.epsilon.over", over)


def _constant_epsilon(e: Evidence) -> float:
    """The epsilon of all env steps; NaN where it changes."""
    own = finite(e.value("explore.epsilon"))
    return e.number("explore.epsilon") if e.value("explore.epsilon.kind") == "constant" else own


@rule("schedule outlasts run")
def schedule_outlasts_run(e: Evidence) -> Finding | None:
    """A schedule that ends after half as many steps again as the run has."""
    if e.solved:
        return None
    for key, metric in _SCHEDULES.items():
        over, kind = e.number(f"{key}.over"), e.value(f"{key}.kind")
        if e.matters(key) and kind in ("linear", "cosine") and over > 1.5 * e.total_steps > 0:
            return Finding(
                NOTE, f"{key} changes over {over:.0f} env steps, run.total_steps is "
                f"{e.total_steps:.0f}.",
                "The run ends in the middle of the schedule.",
                e.set(f"{key}.over", "null"), (metric,),
            )  # fmt: skip
    return None


@rule("entropy collapsed", "one action", "no progress")
def entropy_collapsed(e: Evidence) -> Finding | None:
    """An on-policy learner acts all but deterministically and has not solved its task.

    Both its entropy (0.02 nats: one action has 99.7 % of two) and that of the actions taken.
    """
    entropy, taken = e.metric("train/entropy"), e.metric("collect/action_entropy")
    if not e.on_policy or e.solved or not (0 <= entropy.late < 0.02 and taken.late < 0.1):
        return None
    return Finding(
        HARMFUL, f"The policy has stopped exploring: entropy {entropy.late:.2g} nats from "
        f"{steps(entropy.late_since)} on ({entropy.first:.2g} at first).",
        "It became certain before it found the reward.",
        [*e.set("policy.entropy_coef", 0.02 if not e.number("policy.entropy_coef") > 0 else
                f"{3 * e.number('policy.entropy_coef'):.3g}"), *e.scaled("policy.lr", 0.3)],
        ("train/entropy", "collect/action_entropy"),
    )  # fmt: skip


@rule("one action", "no progress")
def one_action(e: Evidence) -> Finding | None:
    """The actions taken are all but equal: entropy below 2 % of the largest.

    An epsilon of 0.01 over two actions alone has 4.5 %.
    """
    taken = e.metric("collect/action_entropy")
    rows = np.median(np.diff(taken.env_steps)) if len(taken) > 1 else 0
    if not e.learns or e.solved or rows < _FEW_ROWS or not taken.late < 0.02:
        return None
    tries = [*e.set("explore.epsilon.end", 0.05), *e.scaled("policy.lr", 0.3)]
    tries = [*e.scaled("policy.entropy_coef", 3), *tries] if e.on_policy else tries
    return Finding(
        HARMFUL, f"It takes one action only: action entropy {taken.late:.1%} of the largest from "
        f"{steps(taken.late_since)} on.",
        "Values or the policy are saturated, or nothing explores.",
        tries, ("collect/action_entropy", "collect/epsilon_mean"),
    )  # fmt: skip


@rule("large steps", "no progress", "forgetting")
def large_steps(e: Evidence) -> Finding | None:
    """PPO: KL above 0.1, or half of the rows outside of the clip.

    target_kl is 0.01 to 0.05 where it is used (Dossa et al. 2021); healthy runs have 0.001 to 0.01.
    """
    kl, clipped = e.metric("train/approx_kl"), e.metric("train/clip_fraction")
    if e.solved or not (kl.late > 0.1 or clipped.late > 0.5):
        return None
    return Finding(
        HARMFUL, f"Updates leave the trust region: KL {kl.late:.2g}, {clipped.late:.0%} of rows "
        "clipped.",
        "Too many or too large steps on one rollout.",
        [*e.scaled("policy.lr", 0.3), *e.scaled("policy.epochs", 0.5),
         *e.set("policy.target_kl", 0.03)],
        ("train/approx_kl", "train/clip_fraction"),
    )  # fmt: skip


@rule("explained variance", "no progress")
def useless_value(e: Evidence) -> Finding | None:
    """The value explains nothing of the returns late in the run (0 is a constant, 1 all)."""
    explained = e.metric("train/explained_variance")
    if e.solved or len(explained) < 10 or not explained.late < 0.02 or e.span == 0:
        return None
    return Finding(
        HARMFUL, f"The value explains nothing: explained variance {explained.late:.2g} from "
        f"{steps(explained.late_since)} on.",
        "Advantages are noise then; values need larger steps, or rewards of another scale.",
        [*e.set("policy.normalize_reward", "true"), *e.scaled("policy.value_coef", 2),
         *e.set("policy.separate_value", "true")],
        ("train/explained_variance", "train/value_loss"),
    )  # fmt: skip


@rule("greedy is stuck", "no progress", "forgetting")
def greedy_is_stuck(e: Evidence) -> Finding | None:
    """The greedy policy scores less than the exploring one by 30 % of all that was ever between.

    Some noise saves a policy that runs in circles; it has not learned what it does by chance.
    """
    collected, score = e.metric("collect/return_mean"), e.score
    gap = collected.late - score.late
    if e.solved or len(score) < 5 or not gap > 0.3 * e.span or not gap > 2 * e.noise:
        return None
    return Finding(
        HARMFUL, f"Evaluation is below what exploring episodes get: {score.late:.4g} against "
        f"{collected.late:.4g} from {steps(score.late_since)} on.",
        "The greedy policy gets stuck where random actions go on, or evaluation differs "
        "(env.eval_kwargs).",
        [*e.scaled("explore.epsilon.end", 0.3), *e.scaled("run.total_steps", 2)],
        ("eval/return_mean", "collect/return_mean", "eval/length_mean"),
    )  # fmt: skip


@rule("endless episodes")
def endless_episodes(e: Evidence) -> Finding | None:
    """Evaluation episodes were cut because they did not end."""
    cut, limit = e.metric("eval/cut_episodes"), e.number("eval.max_episode_steps")
    if not cut.last > 0 or e.solved:
        return None
    return Finding(
        NOTE, f"{cut.last:.0f} evaluation episodes did not end within {limit:.0f} steps, last at "
        f"{steps(float(cut.env_steps[-1]))}.",
        "Their returns are those of a part; training may have such episodes, too.",
        e.set("env.max_episode_steps", 1000), ("eval/cut_episodes", "eval/length_mean"),
    )  # fmt: skip


@rule("forgetting", "no progress")
def forgetting(e: Evidence) -> Finding | None:
    """More than half of the largest gain was lost again, beyond the noise of evaluations."""
    if e.solved or not e.lost > 0.5:
        return None
    best = int(np.argmax(e.score.values))
    return Finding(
        HARMFUL, f"The score fell: {e.score.values[best]:.4g} at "
        f"{steps(float(e.score.env_steps[best]))}, {e.after_best.median:.4g} from "
        f"{steps(e.after_best.first_step)} on.",
        "The policy forgets; the best weights are kept in checkpoints/best.safetensors.",
        [*e.scaled("policy.lr", 0.3), *e.scaled("buffer.capacity", 3),
         *e.set("policy.target_kl", 0.03)],
        ("eval/return_mean", "eval/best_return_mean", "buffer/sample_age"),
    )  # fmt: skip


@rule("constant score", "no progress", "explained variance", "gradients vanish", "greedy is stuck")
def constant_score(e: Evidence) -> Finding | None:
    """Fifty episodes or more, of two evaluations and exploring, and all had the same return."""
    names = ("eval/return_min", "eval/return_max", "collect/return_min", "collect/return_max")
    seen = np.concatenate([e.metric(name).values for name in names])
    few = len(e.score) < 2 or not len(seen)
    if not e.learns or e.offline or e.solved or few or np.ptp(seen) > 0:
        return None
    if len(e.score) * e.number("run.eval_episodes") + e.metric("collect/episodes").last < 50:
        return None
    return Finding(
        BROKEN, f"Every episode had the return {e.score.last:.4g}, in {len(e.score)} evaluations "
        f"over {steps(e.env_steps)}.",
        "The reward was never found, so there is nothing to learn from.",
        ["bonus=rnd", *e.scaled("explore.epsilon.over", 3), *e.scaled("run.total_steps", 5)],
        ("collect/return_max", "collect/action_entropy"),
    )  # fmt: skip


@rule("no progress")
def no_progress(e: Evidence) -> Finding | None:
    """Late evaluations are not above the early ones, at half of the run and more."""
    if not e.learns or e.solved or e.improved or len(e.score) < 6 or not e.progress >= 0.5:
        return None
    first, best = e.score.early, float(e.score.values.max())
    if best - first > 3 * e.best_noise and e.score.late > first:
        return None
    if e.offline and np.ptp(e.returns) == 0:
        return None  # good from the first evaluation on, or never: returns of the data are unknown
    return Finding(
        HARMFUL, f"No progress: the score is {e.score.late:.4g} from {steps(e.score.late_since)} "
        f"on, {first:.4g} at first, its best {best:.4g}.",
        "No other symptom was found: the step size, exploration or the length of the run may be "
        "wrong, or the task needs a memory.",
        [*e.set("policy.state_init", "stored"), *_memory(e), *e.scaled("policy.lr", 0.3),
         *e.scaled("run.total_steps", 3)],
        ("eval/return_mean", "collect/return_max", "train/loss"),
    )  # fmt: skip


def _memory(e: Evidence) -> list[str]:
    """The recurrent policy of the same kind, where there is one and this is none."""
    if e.value("memory.name") not in (None, "none"):
        return []
    other = "memory=lstm" if e.on_policy else _RECURRENT.get(e.policy)
    return [other] if other else []


RULES = (
    short_horizon, long_horizon, long_returns, still_exploring, no_exploration,
    schedule_outlasts_run, entropy_collapsed, one_action, large_steps, useless_value,
    greedy_is_stuck, endless_episodes, forgetting, constant_score, no_progress,
)  # fmt: skip
