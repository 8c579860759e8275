"""Fixtures: an in-process ``rlrun`` in an empty directory."""

from tests.in_process import build as build
from tests.in_process import composer as composer
from tests.in_process import rlrun as rlrun
