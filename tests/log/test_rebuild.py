"""``rlrun tensorboard-rebuild``: event files from the records of a run."""

import json

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.cli.main import main
from rlrun.log.tensorboard import TensorBoardWriter
from tests.in_process import assert_one_line

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


def test_what_no_record_has_is_copied(tmp_path):
    """Pictures and histograms; not what a resume took back."""
    run_dir = tmp_path / "run"
    assert main([*LINE, f"run.dir={run_dir}"]) == 0
    for purge, steps in ((None, (10, 20, 30)), (15, (20,))):
        board = TensorBoardWriter(run_dir, purge_step=purge)
        for step in steps:
            board.image("a/picture", step, bytes([step]), height=1, width=1)
            board.histogram("a/values", step, np.arange(step))
        board.close()
    torn = TensorBoardWriter(run_dir)
    torn.image("a/picture", 40, b"x" * 500, height=1, width=1)
    torn.close()
    torn.path.write_bytes(torn.path.read_bytes()[:-100])
    assert main(["tensorboard-rebuild", str(run_dir)]) == 0
    (new,) = run_dir.glob("events.out.tfevents.*")
    sizes = dict.fromkeys(("images", "histograms"), 0)
    events = EventAccumulator(str(new), size_guidance=sizes).Reload()
    pictures = [(e.step, e.encoded_image_string) for e in events.Images("a/picture")]
    assert pictures == [(10, bytes([10])), (20, bytes([20]))]
    assert [(e.step, e.histogram_value.num) for e in events.Histograms("a/values")] == [
        (10, 10), (20, 20),
    ]  # fmt: skip
    assert len(events.Tensors("config")) == 1


def test_what_cannot_be_rebuilt(tmp_path, capsys):
    assert main(["tensorboard-rebuild", str(tmp_path)]) == 2
    run_dir = tmp_path / "run"
    assert main([*LINE, f"run.dir={run_dir}"]) == 0
    (run_dir / "timings.jsonl").unlink()
    (old,) = run_dir.glob("events.out.tfevents.*")
    capsys.readouterr()
    assert main(["tensorboard-rebuild", str(run_dir)]) == 6
    assert_one_line(capsys)
    assert old.exists()
