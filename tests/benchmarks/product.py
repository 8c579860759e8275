"""The parts of rlrun that benchmarks measure or use: its only import site."""

# ruff: noqa: F401

from rlrun.buffer.replay import Replay
from rlrun.env import make_env
from rlrun.env.conform import PROBES
from rlrun.functional.scan import linear_scan
from rlrun.nets.memory import make_memory
from rlrun.pipeline.collector import Collector
from rlrun.policy.compute import cpu_has_bf16_lstm, flushed, tensor_cores
from rlrun.policy.r2d2 import R2D2
from rlrun.reports.intervals import aggregate_iqm, mean_interval
from rlrun.run.build import make_collector, make_policy, make_replay
from rlrun.run.plan import make_plan
from rlrun.schema.spelling import RENAMED
from rlrun.types import Chunk, Counters, Sample, Segment, Window
