"""Runs with event files, written by hand: what TensorBoard shows needs no training."""

import numpy as np

from rlrun.log.tensorboard import TensorBoardWriter
from rlrun.log.window_figure import WindowFigure, kinds
from rlrun.run.hparams import trial_of
from tests.reports.forge import forge


def board(path, *, seed, lr, steps=3000, **more):
    """A run of R2D2 with scalars, a row, a picture and histograms; ``lr`` and ``seed`` typed."""
    typed = ["policy=r2d2", "env=cartpole", f"policy.lr={lr}", "run.total_steps=3000"]
    given = {"policy__name": "r2d2", "policy__lr": lr, "run__total_steps": 3000} | more
    run_dir = forge(path, seed=seed, overrides=typed, **given)
    writer = TensorBoardWriter(run_dir)
    config = (run_dir / "config.yaml").read_text()
    trial = trial_of(run_dir, config, "2026-01-31T12:00:03+00:00")
    writer.text("config", f"```yaml\n{config}\n```")
    writer.hparams(0, trial, {})
    for step in range(500, steps + 1, 500):
        score = 20.0 + step / 100 + seed
        shares = {"eval/return_mean": score, "eval/return_min": 9.0, "eval/return_max": 2 * score}
        health = {"buffer/sample_age": step / 2, "buffer/priority_ess": 0.6}
        spread = {"buffer/weight_spread": 0.3, "train/delta_q_stored_last": 0.1}
        writer.scalars(step, shares | health | spread | {"eval/best_return_mean": score})
        times = {"time/wall_seconds": step / 10, "time/collect_seconds": step / 40}
        writer.scalars(step, {"train/loss": 1 / step, "collect/return_mean": 15.0} | times)
    values = np.random.default_rng(seed).normal(size=200)
    for tag in ("windows/q_taken", "windows/td_abs", "windows/priority"):
        writer.histogram(tag, steps, values)
    valid = np.arange(24)[:, None] < np.array([24, 9, 15, 24])
    kind = kinds(valid, np.zeros_like(valid), burnin=4, learned=16)
    td = np.abs(values[: kind.size].reshape(kind.shape))
    encoded, height, width = WindowFigure(kind, td, np.array([3.0, 2.0, 1.0, 0.5]), "windows").png()
    writer.image("windows/sampled", steps, encoded, height=height, width=width)
    final = {"run/env_steps": steps, "time/wall_seconds": steps / 10 + 1}
    writer.hparams(steps, trial, final)
    writer.close()
    return run_dir
