"""The Ray of a run's own: what it is started with."""

import shutil

import pytest

from rlrun.pipeline.ray import cluster as cluster_module
from rlrun.pipeline.ray.cluster import Cluster


@pytest.mark.parametrize(
    ("gpus", "whole"), [(0.5, 1), (1.0, 1), (3 * 0.2 + 0.3 + 0.1, 1), (1.1, 2), (0, None)]
)
def test_a_node_has_the_fractions_of_all_roles_rounded_up(gpus, whole, monkeypatch):
    """Ray refuses to start with half a GPU, or half of a custom resource."""
    given = {}
    monkeypatch.setattr("ray.init", lambda **options: given.update(options))
    monkeypatch.setattr(cluster_module, "_start_reaper", lambda files: None)
    monkeypatch.setattr(cluster_module, "_silence", lambda: None)
    cluster = Cluster.__new__(Cluster)
    cluster._connect(None, 64.2, gpus, {"big_gpu": 1.5})
    shutil.rmtree(cluster.files)
    assert given.get("num_gpus") == whole
    assert given["num_cpus"] == 66
    assert given["resources"] == {"big_gpu": 2}
    assert all(type(x) is int for x in (given["num_cpus"], given.get("num_gpus", 0)))
