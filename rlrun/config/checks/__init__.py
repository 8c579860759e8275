"""Checks that span several groups of a config; keys of one group are checked in its dataclass."""
