"""The parts of rlrun that micro-benchmarks measure: one import site for each.

Benchmarks of whole runs import nothing of rlrun: they call its command line and read ``run.json``,
``metrics.jsonl`` and ``timings.jsonl``.
"""

from rlrun.buffer.replay import Replay, host_replay
from rlrun.buffer.samplers.proportional import Uniform
from rlrun.buffer.samplers.sumtree import SumTree
from rlrun.buffer.storage import compressed as blocks
from rlrun.buffer.storage import layout
from rlrun.buffer.storage.layout import Layout, Row
from rlrun.buffer.windows.cutter import Cutter
from rlrun.build.pipeline import make_collector
from rlrun.build.plan import make_plan
from rlrun.build.policy import make_policy
from rlrun.codec.coders import CODER_NAMES as CODERS
from rlrun.codec.coders import decode_field, encode_field
from rlrun.codec.content import FieldSpec
from rlrun.codec.words import kind_of, to_words
from rlrun.errors import RlrunError
from rlrun.jit import COMPILED, jit
from rlrun.optim.compute import cpu_has_bf16_lstm
from rlrun.pipeline.collector import Collector
from rlrun.policy.r2d2 import R2D2
from rlrun.reports.intervals import mean_interval
from rlrun.schema import TransportConfig
from rlrun.schema.spelling import RENAMED
from rlrun.transport import make_collector_side, make_learner_side
from rlrun.types import Chunk, Counters, Sample, Segment, Spec, Window

__all__ = [
    "CODERS",
    "COMPILED",
    "R2D2",
    "RENAMED",
    "Chunk",
    "Collector",
    "Counters",
    "Cutter",
    "FieldSpec",
    "Layout",
    "Replay",
    "RlrunError",
    "Row",
    "Sample",
    "Segment",
    "Spec",
    "SumTree",
    "TransportConfig",
    "Uniform",
    "Window",
    "blocks",
    "cpu_has_bf16_lstm",
    "decode_field",
    "encode_field",
    "host_replay",
    "jit",
    "kind_of",
    "layout",
    "make_collector",
    "make_collector_side",
    "make_learner_side",
    "make_plan",
    "make_policy",
    "mean_interval",
    "to_words",
]
