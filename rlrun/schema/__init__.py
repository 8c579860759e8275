"""Types and ranges of every config key, without values: yaml is the only home of a default.

Does not import torch. A dataclass rejects values outside its fields' ranges and combinations that
its ``rules`` reject (``Invalid``). ``rlrun.config`` reads the yaml and checks combinations across
groups. Lengths and periods are in environment steps. A field's metadata says which other keys
decide whether it is read (``rlrun.schema.ranges``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# ruff: noqa: F403, F405
from rlrun.schema.policy import *
from rlrun.schema.ranges import *
from rlrun.schema.run import *


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
    "r2d2": R2D2Config, "dqn": DQNConfig, "random": RandomConfig, "qmix": QMIXConfig,
    "ddpg": DDPGConfig, "td3": TD3Config, "sac": SACConfig, "tqc": TQCConfig,
    "crossq": CrossQConfig, "scripted": ScriptedConfig, "ppo": PPOConfig, "a2c": A2CConfig,
    "impala": IMPALAConfig, "pqn": PQNConfig, "bc": BCConfig, "cql": CQLConfig,
    "cql_sac": CQLSACConfig, "iql": IQLConfig,
}  # fmt: skip
MEMORY_CONFIGS: dict[str, type[MemoryConfig]] = {
    "lstm": MemoryConfig, "gru": MemoryConfig, "mingru": MinGRUConfig, "lru": LRUConfig,
    "ffm": FFMConfig, "rtu": RTUConfig, "lmu": LMUConfig, "gtrxl": GTrXLConfig,
    "indrnn": IndRNNConfig, "bmru": BMRUConfig, "mlstm": MLSTMConfig, "slstm": SLSTMConfig,
    "gated_deltanet": GatedDeltaNetConfig, "mamba2": Mamba2Config, "none": MemoryConfig,
}  # fmt: skip
# Groups whose options differ in keys: group -> {name in the yaml: class}.
OPTION_CONFIGS: dict[str, Mapping[str, type[Ranged]]] = {
    "policy": POLICY_CONFIGS,
    "torso": dict.fromkeys(("mlp", "nature_cnn", "small_cnn"), TorsoConfig)
    | {"image_and_vector": ImageAndVectorConfig},
    "memory": MEMORY_CONFIGS,
    "buffer": {"uniform": BufferConfig, "prioritized": PrioritizedConfig, "rank": RankConfig,
               "rollout": RolloutConfig},
    "bonus": {"none": BonusConfig, "rnd": RNDConfig},
    "pipeline": dict.fromkeys(("serial", "overlapped", "offline"), PipelineConfig)
    | {"ray": RayConfig},
}  # fmt: skip
