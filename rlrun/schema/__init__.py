"""Types and ranges of every config key, without values: yaml is the only home of a default.

Does not import torch. A dataclass rejects values outside its fields' ranges and combinations that
its ``rules`` reject (``Invalid``). ``rlrun.config`` reads the yaml and checks combinations across
groups. Lengths and periods are in environment steps. A field's metadata says which other keys
decide whether it is read (``rlrun.schema.ranges``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlrun.schema.nets import BMRUConfig as BMRUConfig
from rlrun.schema.nets import DecayConfig as DecayConfig
from rlrun.schema.nets import FFMConfig as FFMConfig
from rlrun.schema.nets import GatedDeltaNetConfig as GatedDeltaNetConfig
from rlrun.schema.nets import GTrXLConfig as GTrXLConfig
from rlrun.schema.nets import ImageAndVectorConfig as ImageAndVectorConfig
from rlrun.schema.nets import IndRNNConfig as IndRNNConfig
from rlrun.schema.nets import LMUConfig as LMUConfig
from rlrun.schema.nets import LRUConfig as LRUConfig
from rlrun.schema.nets import Mamba2Config as Mamba2Config
from rlrun.schema.nets import MemoryConfig as MemoryConfig
from rlrun.schema.nets import MinGRUConfig as MinGRUConfig
from rlrun.schema.nets import MLSTMConfig as MLSTMConfig
from rlrun.schema.nets import RTUConfig as RTUConfig
from rlrun.schema.nets import SLSTMConfig as SLSTMConfig
from rlrun.schema.nets import TorsoConfig as TorsoConfig
from rlrun.schema.policy import A2CConfig as A2CConfig
from rlrun.schema.policy import ActionValueConfig as ActionValueConfig
from rlrun.schema.policy import BCConfig as BCConfig
from rlrun.schema.policy import BonusConfig as BonusConfig
from rlrun.schema.policy import ControlConfig as ControlConfig
from rlrun.schema.policy import CQLConfig as CQLConfig
from rlrun.schema.policy import CQLSACConfig as CQLSACConfig
from rlrun.schema.policy import CrossQConfig as CrossQConfig
from rlrun.schema.policy import DDPGConfig as DDPGConfig
from rlrun.schema.policy import DQNConfig as DQNConfig
from rlrun.schema.policy import IMPALAConfig as IMPALAConfig
from rlrun.schema.policy import IQLConfig as IQLConfig
from rlrun.schema.policy import OnPolicyConfig as OnPolicyConfig
from rlrun.schema.policy import PolicyConfig as PolicyConfig
from rlrun.schema.policy import PPOConfig as PPOConfig
from rlrun.schema.policy import PQNConfig as PQNConfig
from rlrun.schema.policy import QMIXConfig as QMIXConfig
from rlrun.schema.policy import R2D2Config as R2D2Config
from rlrun.schema.policy import RandomConfig as RandomConfig
from rlrun.schema.policy import RNDConfig as RNDConfig
from rlrun.schema.policy import SACConfig as SACConfig
from rlrun.schema.policy import ScriptedConfig as ScriptedConfig
from rlrun.schema.policy import SequenceConfig as SequenceConfig
from rlrun.schema.policy import SwitchedConfig as SwitchedConfig
from rlrun.schema.policy import TD3Config as TD3Config
from rlrun.schema.policy import TQCConfig as TQCConfig
from rlrun.schema.policy import ValueConfig as ValueConfig
from rlrun.schema.ranges import Invalid as Invalid
from rlrun.schema.ranges import Range, Ranged
from rlrun.schema.ranges import ScheduleConfig as ScheduleConfig
from rlrun.schema.ranges import Seconds as Seconds
from rlrun.schema.run import WRAPPER_CONFIGS as WRAPPER_CONFIGS
from rlrun.schema.run import AgentsConfig as AgentsConfig
from rlrun.schema.run import BufferConfig as BufferConfig
from rlrun.schema.run import CheckpointConfig as CheckpointConfig
from rlrun.schema.run import CollectorConfig as CollectorConfig
from rlrun.schema.run import EnvConfig as EnvConfig
from rlrun.schema.run import EvalConfig as EvalConfig
from rlrun.schema.run import ExploreConfig as ExploreConfig
from rlrun.schema.run import LearnerConfig as LearnerConfig
from rlrun.schema.run import LoggerConfig as LoggerConfig
from rlrun.schema.run import PipelineConfig as PipelineConfig
from rlrun.schema.run import PrioritizedConfig as PrioritizedConfig
from rlrun.schema.run import PriorityConfig as PriorityConfig
from rlrun.schema.run import RankConfig as RankConfig
from rlrun.schema.run import RayConfig as RayConfig
from rlrun.schema.run import ResumeConfig as ResumeConfig
from rlrun.schema.run import RoleConfig as RoleConfig
from rlrun.schema.run import RolloutConfig as RolloutConfig
from rlrun.schema.run import RunConfig as RunConfig
from rlrun.schema.run import TransportConfig as TransportConfig
from rlrun.schema.run import WatchdogConfig as WatchdogConfig
from rlrun.schema.run import WrapperConfig as WrapperConfig
from rlrun.schema.studies import BenchConfig as BenchConfig
from rlrun.schema.studies import BenchTaskConfig as BenchTaskConfig
from rlrun.schema.studies import ProbeConfig as ProbeConfig
from rlrun.schema.studies import SearchConfig as SearchConfig
from rlrun.schema.studies import SeedsConfig as SeedsConfig


@dataclass(frozen=True)
class Config(Ranged):
    """The whole run.

    The ``name`` of ``policy``, ``torso``, ``buffer``, ``bonus`` and ``pipeline`` selects the
    dataclass.
    """

    seed: int = field(metadata={"range": Range(0, 2**32, open_high=True)})
    device: str
    env: EnvConfig
    run: RunConfig
    eval: EvalConfig
    watchdog: WatchdogConfig
    resume: ResumeConfig
    checkpoint: CheckpointConfig
    agents: AgentsConfig
    policy: PolicyConfig
    torso: TorsoConfig
    memory: MemoryConfig
    buffer: BufferConfig
    explore: ExploreConfig
    bonus: BonusConfig
    collector: CollectorConfig
    learner: LearnerConfig
    logger: LoggerConfig
    pipeline: PipelineConfig
    transport: TransportConfig


POLICY_CONFIGS: dict[str, type[PolicyConfig]] = {
    "r2d2": R2D2Config,
    "dqn": DQNConfig,
    "random": RandomConfig,
    "qmix": QMIXConfig,
    "ddpg": DDPGConfig,
    "td3": TD3Config,
    "sac": SACConfig,
    "tqc": TQCConfig,
    "crossq": CrossQConfig,
    "scripted": ScriptedConfig,
    "ppo": PPOConfig,
    "a2c": A2CConfig,
    "impala": IMPALAConfig,
    "pqn": PQNConfig,
    "bc": BCConfig,
    "cql": CQLConfig,
    "cql_sac": CQLSACConfig,
    "iql": IQLConfig,
}
MEMORY_CONFIGS: dict[str, type[MemoryConfig]] = {
    "lstm": MemoryConfig,
    "gru": MemoryConfig,
    "mingru": MinGRUConfig,
    "lru": LRUConfig,
    "ffm": FFMConfig,
    "rtu": RTUConfig,
    "lmu": LMUConfig,
    "gtrxl": GTrXLConfig,
    "indrnn": IndRNNConfig,
    "bmru": BMRUConfig,
    "mlstm": MLSTMConfig,
    "slstm": SLSTMConfig,
    "gated_deltanet": GatedDeltaNetConfig,
    "mamba2": Mamba2Config,
    "none": MemoryConfig,
}
# Groups whose options differ in keys: group -> {name in the yaml: class}.
OPTION_CONFIGS: dict[str, Mapping[str, type[Ranged]]] = {
    "policy": POLICY_CONFIGS,
    "torso": {
        "mlp": TorsoConfig,
        "nature_cnn": TorsoConfig,
        "small_cnn": TorsoConfig,
        "image_and_vector": ImageAndVectorConfig,
    },
    "memory": MEMORY_CONFIGS,
    "buffer": {
        "uniform": BufferConfig,
        "prioritized": PrioritizedConfig,
        "rank": RankConfig,
        "rollout": RolloutConfig,
    },
    "bonus": {
        "none": BonusConfig,
        "rnd": RNDConfig,
    },
    "pipeline": {
        "serial": PipelineConfig,
        "overlapped": PipelineConfig,
        "offline": PipelineConfig,
        "ray": RayConfig,
    },
}
# Nodes of commands that start many runs, each with its own yaml next to config.yaml.
COMMAND_CONFIGS: dict[str, type[Ranged]] = {
    "search": SearchConfig,
    "seeds": SeedsConfig,
    "bench": BenchConfig,
    "probe": ProbeConfig,
}
