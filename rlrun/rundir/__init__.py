"""Files of a run directory: record, lock, checkpoints, weights."""
