"""Plugins of other packages, found because this directory is on ``sys.path``."""
