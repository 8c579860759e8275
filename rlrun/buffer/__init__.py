"""Experience replay and rollouts: row storage, windows and samplers."""
