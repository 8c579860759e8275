"""Symptoms in what an agent does and what it scores, the last rows of the table; the diagnosis."""

import math
from collections.abc import Iterator

import numpy as np

from rlrun.reports.doctor.evidence import Evidence, steps
from rlrun.reports.doctor.symptoms import BROKEN, HARMFUL, NOTE, SYMPTOMS, Found, Rows, symptom
from rlrun.reports.runs import RunData, finite, printable
from rlrun.terminal import paragraph

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
        change = "*3" if e.number("policy.entropy_coef") > 0 else "=0.02"
        tries = f"policy.entropy_coef{change} policy.lr*0.3"
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
        obs = "policy.normalize_obs=true " * (e.value("policy.normalize_obs") is False)
        scaled = e.tries(f"{obs}policy.normalize_reward=true")
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


def diagnose(evidence: Evidence) -> dict[str, Found]:
    """Return the findings by the name of their symptom, the most severe first.

    A finding that another one explains is left out.
    """
    with np.errstate(all="ignore"):  # numbers of untrusted files may have any size
        every = [(row, row.finding(evidence)) for row in SYMPTOMS]
    findings = [(row, finding) for row, finding in every if finding is not None]
    explained = {name for row, _ in findings for name in row.explains.split(", ")}
    findings.sort(key=lambda item: -item[0].severity)
    return {row.name: finding for row, finding in findings if row.name not in explained}


def report_lines(run: RunData) -> Iterator[str]:
    """Yield the lines that ``rlrun doctor`` prints on a run."""
    evidence = Evidence(run)
    findings = diagnose(evidence)
    records = max((len(x) for x, _ in evidence.records.columns.values()), default=0)
    what = f"{records} record{'' if records == 1 else 's'} up to {evidence.env_steps:.0f} env steps"
    if not findings and records < _FEW and evidence.learns and evidence.unsolved:
        yield paragraph(f"{run.name}: too early to say; {what}")
        return
    if not findings:
        looks = [[name for name in row.look.split() if name not in _EVENTS] for row in SYMPTOMS]
        checked = sum(not names or any(map(evidence.records_metric, names)) for names in looks)
        yield paragraph(
            f"{run.name}: nothing looks wrong; {checked} of {len(SYMPTOMS)} rules had something to "
            f"look at in {what} (rlrun help health)"
        )
        return
    count = f"{len(findings)} finding{'s' if len(findings) > 1 else ''}"
    yield paragraph(f"{run.name}: {count}; {what}, status {run.status}")
    for number, finding in enumerate(findings.values(), 1):
        yield paragraph(f"{number}. ", printable(finding.symptom))
        for head, text in (
            ("   why:  ", finding.why),
            ("   try:  ", ", or ".join(finding.tries)),
            ("   look: ", ", ".join(finding.look.split())),
        ):
            if text:
                yield paragraph(head, printable(text))
