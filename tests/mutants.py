"""Single wrong changes of the code, each of which a test must notice.

``python -m tests.mutants`` makes one after the other in a scratch copy and runs the test of its
row there. ``--quick`` makes the first of every room, ``--only TEXT`` those whose file holds TEXT.
It ends with 1 when one survives.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """``old``, which ``file`` of rlrun holds once, replaced by ``new``; ``test`` notices it."""

    file: str
    old: str
    new: str
    test: str


MUTANTS = [
    Mutant(
        "pipeline/serial.py",
        "rollbacks >= MAX_ROLLBACKS",
        "rollbacks > MAX_ROLLBACKS",
        "pipeline/test_faults.py::test_rollbacks_are_counted_and_end",
    ),
    Mutant(
        "pipeline/serial.py",
        "self.inexact_evaluation or evaluation.inexact",
        "evaluation.inexact",
        "pipeline/test_resume.py::test_a_run_stays_inexact_after_an_evaluation_that_was_disturbed",
    ),
    Mutant(
        "pipeline/serial.py",
        "            load_generators(before[1])\n",
        "",
        "pipeline/test_resume.py::test_an_interrupted_evaluation_leaves_no_trace",
    ),
    Mutant(
        "pipeline/collector.py",
        "self.interrupted_units = t, units\n                self.failed",
        "self.interrupted_units = t, 0\n                self.failed",
        "pipeline/test_collector.py::test_a_chunk_that_a_stop_interrupted_is_as_long_as_another",
    ),
    Mutant(
        "pipeline/watchdog.py",
        " >= self.grace <= self.waited",
        " >= self.grace",
        "pipeline/test_watchdog.py::test_a_signal_lets_an_environment_that_moves_go_on",
    ),
    Mutant(
        "pipeline/learner.py",
        "if self.counters.env_steps < self.config",
        "if self.counters.env_steps <= self.config",
        "pipeline/test_learner.py::test_a_rollout_is_learned_from_once_and_dropped",
    ),
    Mutant(
        "buffer/replay.py",
        "self.close and start + self.max_steps >= steps",
        "self.close",
        "buffer/test_replay.py::test_a_chunk_longer_than_the_ring_is_stored_in_pieces",
    ),
    Mutant(
        "buffer/replay.py",
        "        self.drawn = _NOTHING\n        if",
        "        if",
        "buffer/test_replay.py::test_late_priorities_are_ignored_and_counted",
    ),
    Mutant(
        "buffer/replay.py",
        'slots] > table["origin"]',
        'slots] >= table["origin"]',
        "buffer/test_replay.py::test_histories_reach_back_to_the_episodes_start",
    ),
    Mutant(
        "buffer/samplers/proportional.py",
        "max(self.largest, largest)",
        "largest",
        "buffer/test_replay.py::test_late_priorities_are_ignored_and_counted",
    ),
    Mutant(
        "buffer/windows/cutter.py",
        "        if self.close:\n            self.index[:] = 0\n",
        "",
        "transport/test_transport.py::test_windows_start_only_where_states_are_kept",
    ),
    Mutant(
        "build/plan.py",
        'no_steps = settings["horizon"] == 0',
        "no_steps = False",
        "pipeline/test_serial.py::test_a_run_of_no_steps_evaluates_the_untrained_policy",
    ),
    Mutant(
        "build/replay.py",
        "    replay.close = close\n",
        "",
        "pipeline/test_serial.py::test_loading_cuts_no_trajectory",
    ),
    Mutant(
        "run/train.py",
        'k == n or k.startswith(f"{n}.")',
        "k == n",
        "pipeline/test_resume.py::test_a_resume_that_changes_numbers_is_recorded",
    ),
    Mutant(
        "run/train.py",
        "and score >= goal",
        "and score > goal",
        "pipeline/test_serial.py::test_a_solved_run_goes_on_without_its_stop_value",
    ),
    Mutant(
        "rundir/segments.py",
        "part.stop > first]",
        "part.stop >= first]",
        "rundir/test_segments.py::test_a_segment_whose_last_row_is_the_one_before_is_not_needed",
    ),
    Mutant(
        "rundir/history.py",
        "[: -keep - 1]",
        "[: -keep]",
        "rundir/test_history.py::test_what_is_kept_is_a_prefix_of_the_newest",
    ),
    Mutant(
        "rundir/branch.py",
        '(best) > fields["env_steps"]',
        '(best) >= fields["env_steps"]',
        "rundir/test_travel.py::test_the_best_weights_go_along_unless_they_are_of_a_later_step",
    ),
    Mutant(
        "rundir/branch.py",
        '(best) <= fields["env_steps"]',
        '(best) < fields["env_steps"]',
        "rundir/test_travel.py::test_the_best_weights_go_along_unless_they_are_of_a_later_step",
    ),
    Mutant(
        "rundir/saver.py",
        "keep - 1 if",
        "keep if",
        "rundir/test_segments.py::test_a_finite_checkpoint_is_not_deleted_for_one_that_is_not",
    ),
    Mutant(
        "config/space.py",
        "start + (count - 1) * step",
        "start + count * step",
        "sweeps/test_search.py::test_a_range_excludes_its_stop",
    ),
    Mutant(
        "config/space.py",
        "if log and low <= 0:",
        "if log and low < 0:",
        "sweeps/test_search_command.py::test_refused_before_anything_is_written",
    ),
    Mutant(
        "env/wrappers.py",
        "default_rng((self._salt, seed))",
        "default_rng(seed)",
        "env/test_wrappers.py::test_noise_is_not_that_of_the_environment",
    ),
    Mutant(
        "env/walk.py",
        "self._start + self._rng.choice(allowed)",
        "self._rng.choice(allowed)",
        "env/test_actions.py::test_random_actions_under_a_mask_count_from_the_start_of_their_space",
    ),
    Mutant(
        "dataset/writer.py",
        "row - ring.oldest - skip",
        "row - ring.oldest",
        "dataset/test_dataset.py::test_export",
    ),
    Mutant(
        "dataset/writer.py",
        'self.row + t, arrays["first"][t, c]',
        "self.row + t, True",
        "dataset/test_dataset.py::test_statistics_are_of_finished_episodes_only",
    ),
    Mutant(
        "transport/auto.py",
        "versions >= TRIED_WEIGHTS",
        "versions > TRIED_WEIGHTS",
        "transport/test_auto.py::"
        "test_a_link_between_the_two_speeds_is_decided_by_what_was_measured",
    ),
    Mutant(
        "codec/stream.py",
        "        self._answer_frames.clear()\n",
        "",
        "codec/test_stream.py",
    ),
    Mutant(
        "codec/stream.py",
        "header.seq - self.seq - 1",
        "header.seq - self.seq",
        "codec/test_stream.py::test_lost_frame_and_delta_answer",
    ),
    Mutant(
        "sweeps/pool.py",
        "in [*self.running.values()][::-1] if",
        "in self.running.values() if",
        "sweeps/test_pool.py::test_jobs_that_a_killed_server_had_not_started_keep_their_order",
    ),
    Mutant(
        "sweeps/seeds.py",
        "min(start + config.group, config.max)",
        "start + config.group",
        "sweeps/test_seeds.py::test_the_last_group_is_what_the_budget_leaves",
    ),
    Mutant(
        "buffer/windows/table.py",
        "n)[whole]",
        "n)[:]",
        "buffer/test_replay.py::test_a_window_whose_burn_in_is_overwritten_is_dropped",
    ),
    Mutant(
        "buffer/windows/table.py",
        "& (needs < oldest)",
        "& (needs < oldest - 1)",
        "buffer/test_replay.py::test_a_window_whose_burn_in_is_overwritten_is_dropped",
    ),
    Mutant(
        "nets/memory/burn_in.py",
        "own = (valid.sum(0) == count)",
        "own = (valid.sum(0) >= count)",
        "nets/test_cells.py::test_burn_in_of_windows_with_all_some_and_no_rows_of_their_own",
    ),
    Mutant(
        "nets/memory/rtu.py",
        "-torch.expm1(-2 * ",
        "-torch.expm1(-",
        "nets/test_cells.py::test_rtu_is_the_formula",
    ),
    Mutant(
        "kernels/r2d2.py",
        "if t > 0 and not own_first:",
        "if t > 0:",
        "kernels/test_r2d2.py::test_a_window_after_filler_reads_the_action_before_it",
    ),
    Mutant(
        "pipeline/serial.py",
        '        load_generators(state["generators"])\n',
        "",
        "pipeline/test_resume.py::test_a_resumed_pipeline_goes_on_with_the_saved_global_generators",
    ),
    Mutant(
        "pipeline/collector.py",
        '            a["valid"][t] &= ~step.restarted',
        "            pass",
        "pipeline/test_collector.py::test_the_row_of_a_restarted_environment_is_an_end_row",
    ),
    Mutant(
        "pipeline/ray/shard_reader.py",
        "self.asked - 1 - asked",
        "self.asked - asked",
        "pipeline/ray/test_shard_reader.py::"
        "test_the_lag_of_priorities_is_the_updates_since_their_batch_was_drawn",
    ),
    Mutant(
        "pipeline/ray/shard_reader.py",
        "t + m / total for",
        "t + 1.0 for",
        "pipeline/ray/test_shard_reader.py::test_shards_are_drawn_by_the_sums_of_their_priorities",
    ),
    Mutant(
        "reports/sequential.py",
        "rest / (len(every) - n)",
        "rest / n",
        "reports/test_sequential.py::test_blocks_of_unequal_numbers_of_seeds",
    ),
]


def survives(mutant: Mutant, copy: Path) -> bool:
    """Return whether the test of a mutant passes with it in ``copy``, which is left as it was."""
    path = copy / "rlrun" / mutant.file
    right = path.read_text("utf-8")
    assert right.count(mutant.old) == 1, f"{mutant.file} holds {mutant.old!r} not once"
    options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, f"tests/{mutant.test}"]
    try:
        path.write_text(right.replace(mutant.old, mutant.new), "utf-8")
        env = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
    finally:
        path.write_text(right, "utf-8")
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.file}: {mutant.test} did not run:\n{done.stdout}{done.stderr}")
    return done.returncode == 0


def main(argv: list[str] | None = None) -> int:
    """Make the mutants; return 1 when one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the first of every room")
    parser.add_argument("--only", default="", help="those whose file holds this text")
    options = parser.parse_args(argv)
    chosen = [m for m in MUTANTS if options.only in m.file]
    if options.quick:
        chosen = list({m.file.partition("/")[0]: m for m in reversed(chosen)}.values())
    survivors = 0
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "rlrun"
        ignore = shutil.ignore_patterns(".git", "__pycache__", "outputs", "*.egg-info", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=ignore)
        for mutant in chosen:
            began, shown = time.monotonic(), f"{mutant.old.strip()!r} -> {mutant.new.strip()!r}"
            lives = survives(mutant, copy)
            survivors += lives
            seconds = time.monotonic() - began
            word = "SURVIVED" if lives else "killed"
            print(f"{word} {mutant.file}: {shown} ({seconds:.0f} s)", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} were noticed")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
