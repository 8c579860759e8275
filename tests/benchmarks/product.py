"""The parts of rlrun that benchmarks measure or use: its only import site."""

# ruff: noqa: F401

from rlrun import __version__ as VERSION
from rlrun.buffer.replay import Replay, host_replay
from rlrun.buffer.samplers.proportional import Uniform
from rlrun.buffer.samplers.sumtree import SumTree
from rlrun.buffer.storage import compressed as blocks
from rlrun.buffer.storage import layout
from rlrun.buffer.storage.layout import Layout, Row
from rlrun.buffer.windows.cutter import Cutter
from rlrun.cli.probe import probe_task
from rlrun.codec.coders import CODER_NAMES as CODERS
from rlrun.codec.coders import decode_field, encode_field
from rlrun.codec.content import FieldSpec
from rlrun.codec.words import kind_of, to_words
from rlrun.env import make_env
from rlrun.functional.scan import linear_scan
from rlrun.jit import COMPILED, jit
from rlrun.nets.memory import make_memory
from rlrun.optim.compute import cpu_has_bf16_lstm
from rlrun.pipeline.collect_metrics import ActionCounts, CollectMetrics
from rlrun.pipeline.collector import Collector
from rlrun.pipeline.ray.async_source import AsyncSource
from rlrun.pipeline.ray.cluster import Cluster
from rlrun.pipeline.ray.collecting import CollectorRole
from rlrun.pipeline.ray.delivery import Delivery
from rlrun.pipeline.ray.learning import LearnerRole
from rlrun.pipeline.ray.messages import Order, Payload, Stored
from rlrun.pipeline.ray.process import packed
from rlrun.pipeline.ray.pump import Pump
from rlrun.pipeline.ray.receiving import Receiver
from rlrun.pipeline.ray.remote_buffer import RemoteBuffer
from rlrun.pipeline.ray.remote_learner import RemoteLearner
from rlrun.pipeline.ray.replaying import ReplayRole
from rlrun.pipeline.ray.roles import CollectorHandle, Role, Roles, ShardHandle, WeightFrames
from rlrun.pipeline.ray.shard_reader import as_segment
from rlrun.policy.r2d2 import R2D2
from rlrun.reports.intervals import mean_interval
from rlrun.run.build import make_collector, make_policy
from rlrun.run.plan import make_plan
from rlrun.run.ray import collector_parts, learner_parts, shard_parts
from rlrun.schema import TransportConfig
from rlrun.schema.spelling import RENAMED
from rlrun.transport import (
    AutoCollectorSide,
    AutoLearnerSide,
    make_collector_side,
    make_learner_side,
)
from rlrun.transport.auto import nbytes
from rlrun.types import Chunk, Counters, Sample, Segment, Spec, Window
