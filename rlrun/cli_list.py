"""The texts of ``rlrun --help`` and ``rlrun list``; needs neither Hydra nor torch for the first."""

from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill

SUBCOMMANDS = ("eval", "resume", "export", "doctor", "list")
_GROUPS = {
    "policy": "what learns",
    "env": "what it learns in",
    "agents": "how several agents of an environment are shown",
    "experiment": "a whole setting, e.g. of a paper",
    "torso": "first layers",
    "memory": "recurrent layer",
    "buffer": "replay",
    "explore": "exploration",
    "collector": "how rows are collected",
    "learner": "how often and on how much it learns",
    "logger": "records and progress display",
    "pipeline": "how collecting and learning are arranged",
    "debug": "short runs",
}
_HELP = """\
rlrun {version}: recurrent reinforcement learning, configured by Hydra

usage: rlrun [GROUP=OPTION] [KEY=VALUE] ...       one run
       rlrun -m KEY=A,B,C ...                     a sweep, one run for every combination
       rlrun eval RUN_DIR [--episodes N]          scores the weights of a run
       rlrun resume RUN_DIR [KEY=VALUE] ...       goes on with an interrupted run
       rlrun export RUN_DIR DATA_DIR              writes its replay as a dataset (buffer.load)
       rlrun doctor [--calibrate KEY=VALUE ...]   what a bug report needs; what an update costs
       rlrun list                                 what there is, a line each

groups:
{groups}
flags: -m --multirun   -q --quiet   --config-dir DIR (your own yaml files)   --cfg job (the whole
       config)   --version   --hydra-help   tab completion: eval "$(rlrun -sc install=bash)"

examples:
  rlrun policy=r2d2 env=cartpole
  rlrun policy=r2d2 env=tmaze env.length=50 policy.learn_unroll_len=60 seed=1
  rlrun -m policy=r2d2,dqn env=cartpole_novel seed=0,1,2
  rlrun experiment=r2d2_paper env=cartpole --cfg job
  rlrun eval outputs/DATE/TIME_r2d2_cartpole_s0 --episodes 100
"""


def _shipped() -> Path:
    if find_spec("rlrun.conf") is None:
        return Path(__file__).resolve().parents[1] / "conf"
    return Path(str(files("rlrun.conf")))


def _yamls(group: str, config_dir: str | None) -> dict[str, Path]:
    """option -> file, the user's directory after ours (it can add, not replace)."""
    found: dict[str, Path] = {}
    for root in (_shipped(), *([Path(config_dir)] if config_dir else [])):
        for path in sorted((root / group).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def help_text(version: str, config_dir: str | None = None) -> str:
    """The short help."""
    lines = []
    for group, what in _GROUPS.items():
        options = ", ".join(_yamls(group, config_dir))
        text = f"  {group:<11}{what}: {options}"
        lines.append(fill(text, 100, subsequent_indent=" " * 13) + "\n")
    return _HELP.format(version=version, groups="".join(lines))


def _comment(path: Path) -> str:
    """The first comment line of a yaml that says something."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.lstrip("# ").strip()
        if line.startswith("#") and text and not text.startswith("@package"):
            return text
        if line and not line.startswith("#"):
            break
    return ""


def _note(path: Path) -> str:
    """The ``note`` of an environment, else its first comment line."""
    import yaml
    from omegaconf import DictConfig, OmegaConf

    try:
        cfg = OmegaConf.load(path)
    except (yaml.YAMLError, OSError) as e:
        return f"(cannot be read: {' '.join(str(e).split())})"
    note = cfg.get("note") if isinstance(cfg, DictConfig) else None
    return " ".join(str(note).split()) if note else _comment(path)


def list_lines(config_dir: str | None = None) -> Iterator[str]:
    """The lines of ``rlrun list``."""
    for group, title in (
        ("policy", "policies"),
        ("env", "environments"),
        ("experiment", "experiments"),
    ):
        yield f"{title} ({group}=NAME)"
        describe = _note if group == "env" else _comment
        for name, path in _yamls(group, config_dir).items():
            yield f"  {name:<24}{describe(path)}"
        yield ""
