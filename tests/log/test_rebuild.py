"""``rlrun tensorboard-rebuild``: event files from the records of a run."""

import json

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.cli.main import main

LINE = ("policy=random", "env=bandit", "debug=smoke", "-q")


def points(run_dir):
    board = EventAccumulator(str(run_dir), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    tags = board.Tags()
    texts = sorted(t for t in tags["tensors"] if "hparams" not in t)
    return {t: [(e.step, e.value) for e in board.Scalars(t)] for t in tags["scalars"]}, texts


def test_event_files_are_rebuilt(tmp_path, capsys):
    """The same points and texts, one file, with the wall times of the run."""
    run_dir = tmp_path / "run"
    assert main([*LINE, f"run.dir={run_dir}"]) == 0
    before = points(run_dir)
    (old,) = run_dir.glob("events.out.tfevents.*")
    old.write_bytes(old.read_bytes()[:100])
    assert main(["tensorboard-rebuild", str(run_dir)]) == 0
    (new,) = run_dir.glob("events.out.tfevents.*")
    assert capsys.readouterr().out == f"{new}\n"
    assert new != old
    assert points(run_dir) == before
    board = EventAccumulator(str(run_dir)).Reload()
    times = [e.wall_time for e in board.Scalars("eval/return_mean")]
    assert times == sorted(times)
    assert json.loads((run_dir / "run.json").read_text())["status"] == "done"


def test_what_cannot_be_rebuilt(tmp_path, capsys):
    assert main(["tensorboard-rebuild", str(tmp_path)]) == 2
    run_dir = tmp_path / "run"
    assert main([*LINE, f"run.dir={run_dir}"]) == 0
    (run_dir / "timings.jsonl").unlink()
    (old,) = run_dir.glob("events.out.tfevents.*")
    capsys.readouterr()
    assert main(["tensorboard-rebuild", str(run_dir)]) == 6
    assert capsys.readouterr().err.count("\n") == 1
    assert old.exists()
