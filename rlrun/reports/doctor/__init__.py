"""``rlrun doctor RUN_DIR``: symptoms in the records of a run, and which keys to change."""
