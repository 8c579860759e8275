"""Types and ranges of every config key, without values: yaml is the only home of a default.

Torch-free. Each ``__post_init__`` checks its own ranges (``Invalid``); ``rlrun.config`` reads the
yaml and checks what spans several fields. Lengths and periods are in environment steps.
Which other keys decide whether a key is read is metadata of its field (``rlrun.schema.ranges``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlrun.schema.buffer import (
    BufferConfig,
    PrioritizedConfig,
    PriorityConfig,
    RankConfig,
    RolloutConfig,
)
from rlrun.schema.nets import (
    FFMConfig,
    GTrXLConfig,
    ImageAndVectorConfig,
    LMUConfig,
    LRUConfig,
    MemoryConfig,
    MinGRUConfig,
    RTUConfig,
    TorsoConfig,
)
from rlrun.schema.policy import (
    A2CConfig,
    ActionValueConfig,
    BCConfig,
    BonusConfig,
    ControlConfig,
    CQLConfig,
    CQLSACConfig,
    DDPGConfig,
    DQNConfig,
    IMPALAConfig,
    IQLConfig,
    OnPolicyConfig,
    PolicyConfig,
    PPOConfig,
    PQNConfig,
    QMIXConfig,
    R2D2Config,
    RandomConfig,
    RNDConfig,
    SACConfig,
    ScriptedConfig,
    SequenceConfig,
    SwitchedConfig,
    TD3Config,
    ValueConfig,
)
from rlrun.schema.ranges import Invalid, Range, Ranged, ScheduleConfig, Seconds
from rlrun.schema.run import (
    WRAPPER_CONFIGS,
    AgentsConfig,
    CheckpointConfig,
    CollectorConfig,
    EnvConfig,
    EvalConfig,
    ExploreConfig,
    LearnerConfig,
    LoggerConfig,
    PipelineConfig,
    RayConfig,
    ResumeConfig,
    RoleConfig,
    RunConfig,
    TransportConfig,
    WatchdogConfig,
    WrapperConfig,
)
from rlrun.schema.studies import (
    BenchConfig,
    BenchTaskConfig,
    ProbeConfig,
    SearchConfig,
    SeedsConfig,
)

__all__ = [
    "BONUS_CONFIGS",
    "BUFFER_CONFIGS",
    "COMMAND_CONFIGS",
    "MEMORY_CONFIGS",
    "OPTION_CONFIGS",
    "PIPELINE_CONFIGS",
    "POLICY_CONFIGS",
    "TORSO_CONFIGS",
    "WRAPPER_CONFIGS",
    "A2CConfig",
    "ActionValueConfig",
    "AgentsConfig",
    "BCConfig",
    "BenchConfig",
    "BenchTaskConfig",
    "BonusConfig",
    "BufferConfig",
    "CQLConfig",
    "CQLSACConfig",
    "CheckpointConfig",
    "CollectorConfig",
    "Config",
    "ControlConfig",
    "DDPGConfig",
    "DQNConfig",
    "EnvConfig",
    "EvalConfig",
    "ExploreConfig",
    "FFMConfig",
    "GTrXLConfig",
    "IMPALAConfig",
    "IQLConfig",
    "ImageAndVectorConfig",
    "Invalid",
    "LMUConfig",
    "LRUConfig",
    "LearnerConfig",
    "LoggerConfig",
    "MemoryConfig",
    "MinGRUConfig",
    "OnPolicyConfig",
    "PPOConfig",
    "PQNConfig",
    "PipelineConfig",
    "PolicyConfig",
    "PrioritizedConfig",
    "PriorityConfig",
    "ProbeConfig",
    "QMIXConfig",
    "R2D2Config",
    "RNDConfig",
    "RTUConfig",
    "RandomConfig",
    "RankConfig",
    "RayConfig",
    "ResumeConfig",
    "RoleConfig",
    "RolloutConfig",
    "RunConfig",
    "SACConfig",
    "ScheduleConfig",
    "ScriptedConfig",
    "SearchConfig",
    "Seconds",
    "SeedsConfig",
    "SequenceConfig",
    "SwitchedConfig",
    "TD3Config",
    "TorsoConfig",
    "TransportConfig",
    "ValueConfig",
    "WatchdogConfig",
    "WrapperConfig",
]


@dataclass(frozen=True)
class Config(Ranged):
    """The whole run. ``policy``, ``torso``, ``buffer``, ``bonus``, ``pipeline``: the dataclass
    their ``name`` selects."""

    seed: int = field(metadata={"range": Range(0, 2**32, open_high=True)})
    device: str
    env: EnvConfig  # read before what takes values from it, so that errors name its keys
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
BUFFER_CONFIGS: dict[str, type[BufferConfig]] = {
    "uniform": BufferConfig,
    "prioritized": PrioritizedConfig,
    "rank": RankConfig,
    "rollout": RolloutConfig,
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
    "none": MemoryConfig,
}
TORSO_CONFIGS: dict[str, type[TorsoConfig]] = {
    "mlp": TorsoConfig,
    "nature_cnn": TorsoConfig,
    "image_and_vector": ImageAndVectorConfig,
}
BONUS_CONFIGS: dict[str, type[BonusConfig]] = {
    "none": BonusConfig,
    "rnd": RNDConfig,
}
PIPELINE_CONFIGS: dict[str, type[PipelineConfig]] = {
    "serial": PipelineConfig,
    "overlapped": PipelineConfig,
    "offline": PipelineConfig,
    "ray": RayConfig,
}
# Groups whose options have keys of their own: group -> {name in the yaml: class}.
OPTION_CONFIGS: dict[str, Mapping[str, type[Ranged]]] = {
    "policy": POLICY_CONFIGS,
    "torso": TORSO_CONFIGS,
    "memory": MEMORY_CONFIGS,
    "buffer": BUFFER_CONFIGS,
    "bonus": BONUS_CONFIGS,
    "pipeline": PIPELINE_CONFIGS,
}
# Nodes of the commands that start many runs, each with a yaml of its own beside config.yaml.
COMMAND_CONFIGS: dict[str, type[Ranged]] = {
    "search": SearchConfig,
    "seeds": SeedsConfig,
    "bench": BenchConfig,
    "probe": ProbeConfig,
}
