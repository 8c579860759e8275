"""Pipelines as a run makes them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from rlrun.pipeline.loop import Pipeline
from rlrun.run.build import make_pipeline
from rlrun.run.plan import make_plan
from tests.compose import config
from tests.log.records import OpenedLog
from tests.pipeline.make import SMOKE


@pytest.fixture
def pipeline_of(tmp_path) -> Iterator[Callable[..., Pipeline]]:
    """Makes pipelines of ``overrides``, each with a directory of its own."""
    with ExitStack() as opened:
        count = iter(range(99))

        def make(*overrides: str) -> Pipeline:
            c = config(*SMOKE, "env=bandit", "run.stop_return=null", *overrides)
            run_dir = tmp_path / f"pipeline{next(count)}"
            run_dir.mkdir()
            log = opened.enter_context(OpenedLog(c.logger, run_dir, total_steps=9, title=""))
            return opened.enter_context(closing(make_pipeline(make_plan(c), run_dir, log)))

        yield make
