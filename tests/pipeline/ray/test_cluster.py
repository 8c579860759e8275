"""The Ray of a run's own: what it is started with.

Private: rounding, variables and rights would show on a machine with GPUs, on a cluster, beside
another user, and where Ray's head ends within the second in which it starts.
"""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from rlrun.pipeline.ray import cluster as cluster_module
from rlrun.pipeline.ray.cluster import Cluster
from tests.in_process import assert_one_line


@pytest.fixture
def given(monkeypatch):
    """Options that Ray is started with; nothing is started."""
    options = {}
    monkeypatch.setattr("ray.init", lambda **given: options.update(given))
    monkeypatch.setattr(cluster_module, "_start_reaper", lambda files: None)
    monkeypatch.setattr(cluster_module, "_silence", lambda: None)
    return options


@pytest.mark.parametrize(
    ("gpus", "whole"), [(0.5, 1), (1.0, 1), (3 * 0.2 + 0.3 + 0.1, 1), (1.1, 2), (0, None)]
)
def test_a_node_has_the_fractions_of_all_roles_rounded_up(gpus, whole, given):
    """Ray refuses to start with half a GPU, or half of a custom resource."""
    cluster = Cluster.__new__(Cluster)
    cluster._connect(None, 64.2, gpus, {"big_gpu": 1.5})
    shutil.rmtree(cluster.files)
    assert given.get("num_gpus") == whole
    assert given["num_cpus"] == 66
    assert given["resources"] == {"big_gpu": 2}
    assert all(type(x) is int for x in (given["num_cpus"], given.get("num_gpus", 0)))


def test_a_cluster_is_given_the_variables_that_numbers_depend_on(given, monkeypatch):
    """And those of trust and limits; nothing else leaves this machine."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    monkeypatch.setenv("RLRUN_TRUST", "mypkg")
    Cluster.__new__(Cluster)._connect("127.0.0.1:1", 1, 0, {})
    sent = given["runtime_env"]["env_vars"]
    assert sent.items() >= {"OPENBLAS_NUM_THREADS": "3", "RLRUN_TRUST": "mypkg"}.items()
    assert all(name.startswith(("RLRUN_", "OPENBLAS_NUM_THREADS")) for name in sent)


def test_the_files_of_a_local_ray_are_this_users_alone(given):
    """Ray makes its directory writable for everybody, where another user could replace sockets."""
    cluster = Cluster.__new__(Cluster)
    cluster._connect(None, 1, 0, {})
    parent = Path(given["_temp_dir"]).parent
    try:
        assert parent == cluster.files
        assert (parent.stat().st_mode & 0o777, parent.stat().st_uid) == (0o700, os.getuid())
    finally:
        shutil.rmtree(cluster.files)


def test_a_head_that_ends_while_ray_starts_ends_the_process(monkeypatch, capsys):
    """Ray would wait for it for 10 minutes, in calls that nothing interrupts."""
    cluster = Cluster.__new__(Cluster)
    connected, cluster.key = threading.Event(), "pipeline"
    cluster.files = cluster._reaper = None
    head = subprocess.Popen([sys.executable, "-c", "pass"])
    process = psutil.Process(head.pid)
    monkeypatch.setattr(cluster_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(cluster_module, "ENDED_SECONDS", 0.01)
    monkeypatch.setattr(cluster, "_daemon", lambda name: process)
    codes = []
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), connected.set()))
    cluster._watch_start(connected, sys.stderr)
    head.wait()
    assert codes == [7]
    assert_one_line(capsys)
