"""Every test computes with one thread, as ``rlrun`` does for numpy: cores are shared."""

import gc
import multiprocessing
import os
import signal
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is loaded; workers inherit it
# Processes that tests start run this checkout too: kernels are compiled once for all of them.
os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)

import pytest
import torch
from hypothesis import HealthCheck, settings

from rlrun.trust import forget_typed_envs
from tests import (
    read_once,  # patches Hydra
    tiers,  # which tests run
)
from tests.forks import Forks
from tests.in_process import build as build  # fixtures
from tests.in_process import composer as composer
from tests.in_process import rlrun as rlrun

multiprocessing.set_forkserver_preload(["rlrun.run.build"])  # as the command line does

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's `&` ignores
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # other work of the machine fails no test
gc.set_threshold(100_000, 20, 20)  # Hydra's trees are many objects and few cycles


def pytest_addoption(pluginmanager):
    pluginmanager.register(tiers)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # what is imported by now stays: collections need not look at it


@pytest.fixture(scope="session", autouse=True)
def _read_once(request, tmp_path_factory):
    """Workers share what they read; with their subprocesses, which inherit the variable.

    A run of the tests that a test starts is no worker, though it inherits a worker's variables:
    the directory above its own is one of all runs, also of those of other versions.
    """
    top = tmp_path_factory.getbasetemp()
    top = top.parent if hasattr(request.config, "workerinput") else top
    (top / "configs").mkdir(exist_ok=True)
    os.environ[read_once.SHARED] = str(top / "configs")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_environment_was_typed():
    forget_typed_envs()


@pytest.fixture(scope="session")
def forks(tmp_path_factory):
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()
