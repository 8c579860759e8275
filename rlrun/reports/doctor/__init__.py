"""``rlrun doctor RUN_DIR``: what looks wrong in the records of a run, and which key to try."""
