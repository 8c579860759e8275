"""Every test computes with one torch thread: small tensors, and cores that are shared."""

import os

import pytest
import torch


def pytest_xdist_auto_num_workers() -> int | None:
    """One worker more than cores: tests of signals and processes mostly wait."""
    given = "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ
    return None if given else (os.cpu_count() or 1) + 1


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
