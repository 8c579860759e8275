"""One Ray for the tests of this directory that a worker runs; their runs place roles on it."""

import pytest

from rlrun.pipeline.ray.cluster import Cluster


@pytest.fixture(scope="package", autouse=True)
def ray():
    """A Ray of our own with cores enough for several runs."""
    cluster = Cluster(None, cpus=64, gpus=0, custom={})
    yield cluster
    cluster.close()
