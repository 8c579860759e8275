"""torch's library is loaded before torch is imported, by a thread that ends.

Private: a user sees nothing but time.
"""

import subprocess
import sys

import pytest

from rlrun.run.loading import begin_loading_torch

CODE = """
import sys
from pathlib import Path
from rlrun.run.loading import begin_loading_torch, is_loading

maps = Path("/proc/self/maps")
assert "libtorch_cpu.so" not in maps.read_text()
thread = begin_loading_torch()
if thread is not None:
    thread.join()
    assert not is_loading()
    assert "libtorch_cpu.so" in maps.read_text()
    assert "torch" not in sys.modules
import torch
print(thread is not None, torch.ones(2).sum().item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux loads so")
def test_the_library_is_loaded_beside_the_imports():
    import torch

    found = subprocess.check_output([sys.executable, "-c", CODE], text=True).split()
    assert found == [str(torch.version.cuda is None), "2.0"]
    assert begin_loading_torch() is None, "torch is imported here"


def test_without_torch_nothing_is_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("rlrun.run.loading.find_spec", lambda name: None)
    assert begin_loading_torch() is None
