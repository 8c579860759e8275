"""The start of a process: no garbage is collected while packages are imported."""

import gc

import pytest

from rlrun.cli import uncollected


def test_garbage_is_collected_after_the_block_alone():
    frozen = gc.get_freeze_count()
    try:
        with uncollected():
            assert not gc.isenabled()
            kept = [[] for _ in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= frozen + len(kept)
        with pytest.raises(ZeroDivisionError), uncollected():
            _ = 1 / 0
        assert gc.isenabled()
    finally:
        gc.unfreeze()
