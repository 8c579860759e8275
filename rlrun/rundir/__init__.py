"""What a run leaves on disk: record, checkpoints, weights."""
