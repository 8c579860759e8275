"""``rlrun export``: the replay of a run's newest checkpoint as a dataset directory."""

from pathlib import Path
from typing import Any

from rlrun.cli.error_report import report_job_error
from rlrun.errors import CodecError, ConfigError


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
