"""Charts of TensorBoard's CUSTOM SCALARS tab, for the metrics that a run has."""

import re
from collections.abc import Collection

from tensorboard.plugins.custom_scalar import layout_pb2

REPLAY = "replay"
MARGINS = {
    "return, worst to best episode": ("eval/return_mean", "eval/return_min", "eval/return_max")
}
# Page -> chart -> regular expressions of whole tags.
PAGES: dict[str, dict[str, list[str]]] = {
    "score": {
        "return": [r"eval/return_mean"],  # one line of each run
        "best return so far": [r"eval/best_return_mean"],
        "return of exploring episodes": [r"collect/return_mean"],
        "episode length": [r"eval/length_mean"],
        "success": [r"eval/success"],
    },
    REPLAY: {
        "delta Q from stored states": [r"train/delta_q_stored_(first|last)"],
        "delta Q from zero states": [r"train/delta_q_zero_(first|last)"],
        "age of sampled rows, env steps": [r"buffer/sample_age"],
        "effective sample size of the priorities": [r"buffer/priority_ess"],
        "spread of the importance weights": [r"buffer/weight_spread"],
        "priority": [r"buffer/priority_(mean|max)"],
        "alpha and beta": [r"buffer/(alpha|beta)"],
        "replay ratio": [r"train/replay_ratio"],
        "windows": [r"buffer/(windows|demo_windows)"],
        "shares": [r"buffer/(fill|learned_fraction|demo_fraction)", r"train/valid_fraction"],
    },
    "learning": {
        "loss": [r"train/(loss|policy_loss|value_loss|actor_loss|bonus_loss)"],
        "TD error": [r"train/td_abs"],
        "value": [r"train/(q_taken|target)"],
        "gradient norm": [r"train/(actor_)?grad_norm"],
        "learning rate": [r"train/lr"],
        "entropy": [r"train/entropy", r"collect/action_entropy"],
        "explained variance": [r"train/explained_variance"],
        "KL and clipping": [r"train/(approx_kl|clip_fraction|rho_clipped)"],
        "imitation": [r"train/(log_prob|imitation_error|imitation_weight|advantage)"],
        "conservatism": [r"train/(conservative_gap|conservatism)"],
        "target network's lag": [r"train/target_lag"],
        "dead units": [r"train/dead_units"],
    },
    "exploration": {
        "epsilon": [r"collect/epsilon_mean"],
        "temperature": [r"collect/temperature", r"train/temperature"],
        "noise": [r"train/(noise|sigma_abs)"],
        "bonus": [r"train/bonus_(mean|scale|coefficient)"],
    },
    "speed": {
        "per second": [r"time/(env_steps|updates)_per_s"],
        "phases, seconds": [
            r"time/(collect|add|bonus|sample|update|prioritize|eval|log|checkpoint)_seconds"
        ],
        "parts of collect and update, seconds": [
            r"time/(act|env|forward|backward|optimiser)_seconds"
        ],
    },
    "roles": {  # pipeline=ray
        "env steps per second, all collectors": [r"ray/collect_steps_per_s"],
        "busy": [r"ray/(collectors|learner)_busy"],
        "queued chunks": [r"ray/queued_chunks"],
        "age of the weights, env steps": [r"ray/weights_age"],
        "lag of the priorities, updates": [r"ray/priority_lag"],
        "bytes of rows": [r"ray/chunks_(raw|sent)_bytes"],
        "bytes of weights": [r"ray/weights_(raw|sent)_bytes"],
        "coding, seconds": [r"ray/coding_seconds"],
        "faults": [r"ray/(restarts|key_frames|chunks_(lost|repeated|damaged))"],
    },
    "codec": {
        "ratio": [r"codec/\w+_ratio"],
        "bytes": [r"codec/\w+_bytes"],
    },
}


def layout(tags: Collection[str], *, replay: str = REPLAY) -> layout_pb2.Layout:
    """The pages with the charts that some of ``tags`` is in; none is empty.

    ``replay``: title of the page on replayed windows.
    """
    pages = []
    for title, charts in PAGES.items():
        rows = []
        for name, patterns in charts.items():
            if any(re.fullmatch(p, tag) for p in patterns for tag in tags):
                # All patterns: runs' charts are one where they are equal. A beginning would match.
                content = layout_pb2.MultilineChartContent(tag=[f"{p}$" for p in patterns])
                rows.append(layout_pb2.Chart(title=name, multiline=content))
        if title == "score":
            rows += [_margin(name, *t) for name, t in MARGINS.items() if {*t} <= {*tags}]
        if rows:
            name = replay if title == REPLAY else title
            pages.append(layout_pb2.Category(title=name, chart=rows))
    return layout_pb2.Layout(category=pages)


def _margin(name: str, value: str, lower: str, upper: str) -> layout_pb2.Chart:
    series = layout_pb2.MarginChartContent.Series(value=value, lower=lower, upper=upper)
    return layout_pb2.Chart(title=name, margin=layout_pb2.MarginChartContent(series=[series]))
