"""Runs: start, resume, evaluate, export and compare them."""
