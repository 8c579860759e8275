"""``rlrun export``: a run's replay as a dataset; ``rlrun export policy``: its policy as ONNX."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.cli import commands
from rlrun.cli.commands import Parser
from rlrun.cli.error_report import report_job_error
from rlrun.errors import CodecError, ConfigError, ResourceError, extra

if TYPE_CHECKING:
    from rlrun.schema import Config

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_NO_NETWORK = ("random", "scripted")
_OTHER = "./policy is a run directory of this name: rlrun export ./policy DATA_DIR"


def export(
    run_dir: Path, data_dir: Path, *, shard_rows: int, last: int | None, coder: str | None
) -> int:
    """Export rows of a run as a dataset; print one line and return the exit code.

    The device of the run plays no part: one that was trained on a GPU is exported without.
    """
    from rlrun.codec import check_coder
    from rlrun.config import directories, load

    if coder is not None:
        try:
            check_coder(coder)
        except CodecError as e:
            raise ConfigError(f"--codec = {coder}: {str(e).partition(': ')[2]}") from e
    directories.check_length("DATA_DIR", data_dir)
    config, _ = load(run_dir, ["device=cpu"], replay=False)
    directories.require_new(data_dir, "DATA_DIR")  # before torch, which takes seconds to import
    try:
        from rlrun.dataset import read_dataset, require_new_directory
        from rlrun.run.export import export_run

        require_new_directory(data_dir)
        raw_yaml = (run_dir / "config.yaml").read_text(encoding="utf-8")
        given: dict[str, Any] = {"raw_yaml": raw_yaml, "shard_rows": shard_rows}
        given |= {"last": last, "coder": coder}
        export_run(run_dir, data_dir, config, **given)
        print(read_dataset(data_dir).summary())
    except Exception as e:
        return report_job_error(e, run_dir)
    return 0


def export_policy_command(argv: list[str]) -> int:
    """Export a policy; print one line and return the exit code."""
    about = (
        "Writes the greedy policy of a run as an ONNX file, with the recurrent state as input and "
        "output, and normalisation, encoding, masks and bounds inside."
    )
    parser = Parser(prog="rlrun export policy", description=about, epilog=_OTHER)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--onnx", type=Path, metavar="FILE.onnx", help="a new file (required)")
    parser.add_argument(
        "--weights",
        type=commands.weights,
        metavar="final|best|ENV_STEPS",
        default="final",
        help="as for rlrun eval; default: %(default)s",
    )
    parser.add_argument(
        "--tolerance",
        type=commands.positive_number,
        default=1e-5,
        help="largest difference from the actor, of numbers x in units of max(1, |x|); "
        "default: %(default)s",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE.onnx")
    args = parser.parse_args(argv)
    if args.onnx is None:
        allowed = "a new one is allowed"
        raise ConfigError(f"--onnx = null: a file is needed; {allowed}; add it ({_OTHER})")
    given = {"weights": args.weights, "tolerance": args.tolerance, "overwrite": args.overwrite}
    return export_policy(args.run_dir, args.onnx, **given)


def export_policy(
    run_dir: Path, path: Path, *, weights: str, tolerance: float, overwrite: bool = False
) -> int:
    """Check all that needs no torch, export, print one line and return the exit code."""
    from rlrun.config import load

    check_packages(path)
    config, _ = load(run_dir, ["device=cpu"], replay=False)
    check_policy(config)
    check_path(path, overwrite=overwrite)
    try:
        from rlrun.run.onnx import export_policy as export

        print(export(run_dir, path, weights=weights, tolerance=tolerance))
    except Exception as e:
        return report_job_error(e, run_dir)
    return 0


def check_packages(path: Path) -> None:
    """Raise ResourceError unless all packages of the extra are installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        wrong = f"exporting needs the package {missing[0]}, which is missing"
        raise ResourceError(f"--onnx = {path}: {wrong}; pip install {extra('onnx')}")


def check_policy(config: "Config") -> None:
    """Raise ConfigError when the actions are known not to be those of one network."""
    name, agents = config.policy.name, config.agents.name
    allowed = "allowed are policies of one network with actions of one agent; export another run"
    if name in _NO_NETWORK:
        raise ConfigError(f"policy.name = {name}: it has no network to export; {allowed}")
    if name == "qmix":
        raise ConfigError(f"policy.name = {name}: its actions are those of a team; {allowed}")
    if agents == "separate":
        raise ConfigError(f"agents.name = {agents}: every agent has a network; {allowed}")


def check_path(path: Path, *, overwrite: bool = False) -> None:
    """Raise ConfigError unless ``path`` is FILE.onnx, new, in a directory that is there."""
    if path.suffix != ".onnx":
        raise ConfigError(f"--onnx = {path}: is no ONNX file; FILE.onnx is allowed; rename it")
    if path.is_dir():
        raise ConfigError(f"--onnx = {path}: this is a directory; a file is allowed; name one")
    if os.path.lexists(path) and not overwrite:
        wrong = "the file exists; a new one is allowed"
        raise ConfigError(f"--onnx = {path}: {wrong}; choose another path or add --overwrite")
    if not path.absolute().parent.is_dir():
        wrong = f"there is no directory {path.absolute().parent}"
        raise ConfigError(f"--onnx = {path}: {wrong}; an existing one is needed; make it")
