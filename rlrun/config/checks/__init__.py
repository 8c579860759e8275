"""Checks that span several keys of a config."""
