"""Every test computes with one torch thread: small tensors, and cores that are shared."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
