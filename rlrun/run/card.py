"""Export of a run's agent as a directory for others: weights, ONNX graph, config, scores, README.

``rlrun eval``, ``rlrun play`` and ``rlrun.load`` take the directory as they take a run directory.
``act.py`` and ``act.c`` in it are programs for people; rlrun never runs them.
"""

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun import __version__
from rlrun.config import directories, published
from rlrun.errors import ConfigError
from rlrun.pipeline.evaluate import MAX_STEPS, Evaluator, film
from rlrun.reports.groups import Group, group_runs
from rlrun.reports.intervals import LEVEL, few_seeds
from rlrun.reports.runs import RunData, finite_number, printable, read_run, read_runs, sweep_jobs
from rlrun.run.agent import TrainedPolicy, load_trained
from rlrun.run.checkpoint import save_weights
from rlrun.run.files import CARD, CARD_WEIGHTS, CONFIG, write_file
from rlrun.run.hparams import policy_title
from rlrun.run.onnx import INTERFACE, OPSET, description_in, verified_onnx
from rlrun.schema.run import OBJECT
from rlrun.trust import module_of

FORMAT = 1
PROGRAMS = ("act.py", "act.c")  # beside this module
ONNX, PICTURE, README = "policy.onnx", "episode.gif", "README.md"
_LEVELS = 4  # directories above a run that may be its sweep
_EVALUATIONS = {"final": "eval", "best": "best_eval"}  # fields of run.json
_LOCAL = ("run.dir=", "device=", "logger", "hydra.", "sweep.", "search.", "checkpoint.")


def export_card(
    run_dir: Path, out: Path, config_yaml: str, *, weights: str, tolerance: float, picture: bool
) -> str:
    """Write the agent of ``run_dir`` as the new directory ``out``. Return a line that describes it.

    ``config_yaml``: of the run. ``weights``, ``tolerance``: as for ``export_policy``. ``picture``:
    film an episode if the environment can be drawn.

    Raises: as ``export_policy``; ResourceError if a package for pictures is missing.
    """
    trained = load_trained(run_dir, weights=weights, device="cpu")
    graph, difference = verified_onnx(trained, f"OUT = {out}", weights=weights, tolerance=tolerance)
    gif, no_gif = _film(trained) if picture else (None, "--no-gif")
    scores = scores_of(run_dir, weights)
    config = published(config_yaml).encode()
    page = _readme(trained, run_dir, description_in(graph), scores, gif is not None, weights)
    files = {ONNX: graph, CONFIG: config, README: page.encode()}
    files |= {name: Path(__file__).with_name(name).read_bytes() for name in PROGRAMS}
    files |= {PICTURE: gif} if gif is not None else {}
    out = directories.claim(out, exact=True, key="OUT")
    try:
        for name, content in files.items():
            write_file(out / name, content)
        meta = {
            "format": FORMAT, "rlrun": __version__, "policy": trained.plan.config.policy.name,
            "env": trained.plan.config.env.id, "seed": trained.plan.config.seed,
            "weights": weights, "env_steps": trained.env_steps, "scores": scores,
            "files": {CONFIG: [hashlib.sha256(config).hexdigest()]},
            "beside": {  # README.md is for its owner to edit
                name: hashlib.sha256(content).hexdigest()
                for name, content in files.items() if name not in (CONFIG, README)
            },
        }  # fmt: skip
        save_weights(out / CARD_WEIGHTS, trained.policy.weights(), meta)
    except BaseException as e:
        shutil.rmtree(out, ignore_errors=True)
        if isinstance(e, OSError):
            raise directories.storage_error(out, (e.strerror or str(e)).lower(), "OUT") from e
        raise
    what = f"{len(files) + 2} files" + (f"; no {PICTURE}: {no_gif}" if gif is None else "")
    return f"card: {out}, {what}\nlargest difference of {ONNX} from the actor: {difference}"


def _film(trained: TrainedPolicy) -> tuple[bytes | None, str]:
    """Return an episode of ``rlrun eval`` as a GIF, or None and the reason.

    Raises: ResourceError if a package for pictures is missing.
    """
    config = trained.plan.config
    try:
        evaluator = Evaluator(
            config.env, episodes=1, seed=trained.plan.env_seeds.final, agents=config.agents,
            max_steps=min(config.eval.max_episode_steps, MAX_STEPS), envs=1, render=True,
        )  # fmt: skip
        evaluator.warned = True  # cut episodes are not reported
        try:
            filmed = film(evaluator, trained.policy, env_steps=trained.env_steps)
        finally:
            evaluator.close()
    except ConfigError as e:  # the environment has no pictures, or the machine no driver
        return None, str(e)
    assert filmed is not None
    return filmed[0], ""


def scores_of(run_dir: Path, weights: str) -> dict[str, Any]:
    """Return the scores of an agent, and of other seeds of its setting, as plain JSON.

    ``agent``: the evaluation of these weights in run.json, or None. ``seeds``, ``finals``: seeds
    and final returns of the finished runs of the same setting in the run's sweep. ``mean``: theirs,
    with the interval ``low`` to ``high`` that ``rlrun report`` gives, or None and ``why``.
    ``unfinished``: runs of the setting without a score.
    """
    run = read_run(run_dir)
    record = run.record.get(_EVALUATIONS.get(weights, ""))
    numbers = {k: finite_number(v) for k, v in record.items()} if isinstance(record, dict) else {}
    agent = {printable(k): v for k, v in numbers.items() if v is not None}
    out: dict[str, Any] = {"agent": agent if "return_mean" in agent else None}
    group = _setting_of(run)
    if group is None or group.mean is None or len(group.runs) < 2:
        return out | {"seeds": [run.seed], "why": few_seeds(1)}
    mean = group.mean
    return out | {
        "seeds": group.seeds, "finals": group.scores.tolist(), "mean": mean.value,
        "low": mean.low, "high": mean.high, "level": LEVEL, "why": mean.why,
        "unfinished": len(group.unscored),
    }  # fmt: skip


def _setting_of(run: RunData) -> Group | None:
    """Return the runs of a sweep that differ from ``run`` only in the seed, or None.

    Runs that a search chose by their scores are not a sample, so they give None.
    """
    path = os.path.realpath(run.path)
    for above in Path(path).parents[:_LEVELS]:
        if path in {os.path.realpath(job.path) for job in sweep_jobs(above)}:
            for group in group_runs(read_runs([str(above)])):
                if path in {os.path.realpath(member.path) for member in group.everything}:
                    return None if group.trial else group
    return None


def _readme(
    trained: TrainedPolicy,
    run_dir: Path,
    about: dict[str, Any],
    scores: dict[str, Any],
    picture: bool,
    weights: str,
) -> str:
    """Return the README with the front matter that hubs read."""
    config, run = trained.plan.config, read_run(run_dir)
    policy, env = printable(policy_title(config, run_dir)), printable(config.env.id)
    what = f"{policy} on {env}"
    picture_line = f"\n![an episode of greedy actions]({PICTURE})\n" if picture else ""
    return f"""{_front_matter(policy, env, scores)}
# {what}
{picture_line}
An agent trained with rlrun: seed {config.seed}, {weights} weights, {trained.env_steps} env steps.

## Use

{_use(config.env.id, needs_rlrun=bool(about["env"]["wrappers"]))}

## Score

{_score_text(scores, weights)}

## {ONNX}

Version {INTERFACE} of the interface (metadata `rlrun_interface`), opset {OPSET}. n is the number of
environments. `state.*` are zeros at first, then the `next_state.*` of the step before. `first` says
that the observation opens an episode; `prev_action` and `prev_reward` are those of the step before.

{_arrays("input", about["inputs"])}

{_arrays("output", about["outputs"])}

## Training

```sh
{_training(run)}
```

{_versions(run)}

## Files

| file | what it is |
| --- | --- |
| `{CARD_WEIGHTS}` | weights |
| `{CARD}` | the scores, and the sha256 of the other files, which `rlrun verify .` compares |
| `{ONNX}` | a greedy step, with all that acting does |
| `{CONFIG}` | the config of the run |
| `act.py`, `act.c` | programs that act with `{ONNX}`; rlrun does not run them |
"""


def _use(env_id: str, *, needs_rlrun: bool) -> str:
    """Return how the agent is used. ``needs_rlrun``: the environment has wrappers of rlrun."""
    needs_rlrun = needs_rlrun or env_id.startswith("rlrun/")
    needs = " (this environment needs rlrun too)" if needs_rlrun else ""
    package = module_of(env_id).partition(".")[0]
    trust, argument = (f" --trust {package}", f', trust="{package}"') if package else ("", "")
    also = f"The environment comes with the package `{package}`.\n\n" if package else ""
    if env_id.startswith(OBJECT):
        also = (
            f"The environment was given by a script. Without it `rlrun` and `act.py` cannot make "
            f"one; {ONNX} and the class in `act.py` act in any with the same spaces.\n\n"
        )
    return f"""{also}With rlrun, in this directory:

```sh
rlrun play .{trust}
rlrun eval .{trust}
```

```python
import rlrun

agent = rlrun.load("."{argument})
action = agent.act(obs, reward)  # reward: of the last step
```

Without torch, from Python{needs}: `pip install onnxruntime gymnasium`, then

```sh
python act.py {ONNX} 3  # episodes
```

From C, with the library that comes with the Python package onnxruntime. The program reads lines of
numbers (1 if an episode begins, else 0; the last reward; the observation) and answers with actions:

```sh
cc -O2 act.c -o act -ldl
./act "$(python -c 'import onnxruntime as o; print(*o.__path__)')"/capi/libonnxruntime.so.* {ONNX}
```"""


def _front_matter(policy: str, env: str, scores: dict[str, Any]) -> str:
    """Return yaml whose texts are written as JSON, so that no name can change its structure."""
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "onnx", "rlrun", policy, env]
    lines = ["---", "library_name: rlrun", "pipeline_tag: reinforcement-learning",
             f"tags: {json.dumps(tags)}"]  # fmt: skip
    if (agent := scores["agent"]) is not None:
        value = f"{agent['return_mean']:.2f} +/- {agent.get('return_std', 0.0):.2f}"
        result = {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": env, "type": env},
            "metrics": [{"type": "mean_reward", "name": "mean_reward", "value": value,
                         "verified": False}],
        }  # fmt: skip
        lines.append(f"model-index: {json.dumps([{'name': policy, 'results': [result]}])}")
    return "\n".join([*lines, "---", ""])


def _score_text(scores: dict[str, Any], weights: str) -> str:
    """Return sentences on the scores and the number of seeds."""
    agent, seeds = scores["agent"], scores["seeds"]
    own = "These weights were not evaluated."
    if agent is not None:
        own = (
            f"Return of this agent: {agent['return_mean']:.6g}, standard deviation "
            f"{agent.get('return_std', 0.0):.6g} over {agent.get('episodes', 0):g} greedy episodes."
        )
        if weights == "best":
            own += " The weights were chosen by this score, so it is biased upwards."
    if "mean" not in scores:
        return f"{own} {scores['why']}"
    interval = ""
    if scores["low"] is not None:
        interval = f" ({scores['low']:.6g} to {scores['high']:.6g}, {scores['level']:.0%} interval)"
    finals = ", ".join(f"{x:.6g}" for x in scores["finals"])
    text = (
        f"{own}\n\nOver {len(seeds)} seeds ({', '.join(map(str, seeds))}) of this setting the mean "
        f"return of the final weights is {scores['mean']:.6g}{interval}: {finals}. {scores['why']}"
    )
    if scores["unfinished"]:
        text += f" Runs of the setting without a score: {scores['unfinished']}."
    return text


def _arrays(kind: str, arrays: dict[str, Any]) -> str:
    rows = [
        f"| `{printable(name)}` | [{', '.join(['n', *map(str, x['shape'])])}] | {x['dtype']} |"
        for name, x in arrays.items()
    ]
    return "\n".join([f"| {kind} | shape | dtype |", "| --- | --- | --- |", *rows])


def _training(run: RunData) -> str:
    """Return the command line of the run, and those that resumed it with other keys.

    Keys that concern only its machine are left out.
    """

    def kept(words: Sequence[object]) -> list[str]:
        return [str(x) for x in words if not str(x).lstrip("+~").startswith(_LOCAL)]

    lines, resumes = [shlex.join(["rlrun", *kept(run.overrides)])], run.record.get("resumes")
    for words in resumes if isinstance(resumes, list) else []:
        if typed := kept([word for word in words if "=" in str(word)]):
            lines.append(printable(shlex.join(["rlrun", "resume", "RUN_DIR", *typed])))
    return "\n".join(lines)


def _versions(run: RunData) -> str:
    versions = run.record.get("versions")
    recorded = versions if isinstance(versions, dict) else {}
    texts = [f"{printable(k)} {printable(v)}" for k, v in recorded.items() if v is not None]
    git = run.record.get("git")
    commit = git.get("commit") if isinstance(git, dict) else None
    texts += [f"commit {printable(commit)}"] if commit else []
    return f"Versions: {', '.join(texts)}." if texts else "The run has no record."
