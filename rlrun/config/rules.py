"""Settings that do not fit together: one table with a row per error. Does not import torch.

Combinations of keys of one group are rows of that group's dataclass, in ``rlrun.schema``.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np

import rlrun.schema as schema
from rlrun.buffer.layout import rows_before
from rlrun.config.backend import bf16_fault, numpy_obstacle
from rlrun.config.ray import has_token, is_loopback
from rlrun.errors import ConfigError, ResourceError
from rlrun.schema.ranges import Rule, each, format_value
from rlrun.schema.run import OBJECT
from rlrun.spaces import CNN_SIDE, CNN_SIDES, JointSpace, bounded, is_image, leaf_spaces

POLICIES: dict[str, Callable[[Any], object]] = {  # which policies a fix may name
    "learn": lambda kind: True,
    "on_policy": lambda kind: kind.on_policy,
    "replay": lambda kind: not kind.on_policy,
    "tolerate_lag": lambda kind: kind.on_policy and kind.tolerates_lag,
    "have_values": lambda kind: kind.has_values,
    "have_graphs": lambda kind: issubclass(kind, schema.ValueConfig),
}


def space_text(space: Any) -> str:
    """Return kind, dtype and shape of a space."""
    name, shape = type(space).__name__, getattr(space, "shape", None)
    return f"{name} {getattr(space, 'dtype', '')} {list(shape)}" if shape else str(space)


class Facts:
    """Values that rules read: the groups of a config, the environment's spaces, and sizes.

    ``fresh``: the run is about to begin. ``lengths``: steps of the loaded trajectories.
    """

    def __init__(
        self,
        config: schema.Config,
        *,
        fresh: bool = True,
        spaces: tuple[Any, Any, int] = (None, None, 1),
        lengths: Sequence[int] = (),
    ) -> None:
        self.config, self.fresh = config, fresh
        self.obs, self.action, self.agents_of_env = spaces
        self.steps, self.trajectories = sum(lengths), len(lengths)
        self.loaded_rows = self.steps + self.trajectories
        self.single = self.agents_of_env == 1 and not isinstance(self.obs, JointSpace)

    def __getattr__(self, name: str) -> Any:
        """Return a value of ``DERIVED``, or a group of the config."""
        return DERIVED[name](self) if name in DERIVED else getattr(self.config, name)

    def value(self, key: str) -> Any:
        """Return the value of a key or derived value, for a group the chosen option."""
        value: Any = self
        for name in key.split("."):
            value = getattr(value, name)
        return value.name if hasattr(value, "name") else value

    @cached_property
    def policies(self) -> dict[str, str]:
        """Return ``policy=a or policy=b`` of the policies that a fix may name."""
        kind = type(self.action).__name__
        shown, actions = self.config.agents.name, {*self.config.policy.actions}
        fits = POLICIES | {
            "see_agents_so": lambda p: shown in p.agents,
            "have_memory": lambda p: p.recurrent and actions & {*p.actions},
            "act_there": lambda p: kind in p.actions and "shared" in p.agents,
        }
        learn = {name: p for name, p in schema.POLICY_CONFIGS.items() if p.learns}
        named = {what: [name for name, p in learn.items() if fit(p)] for what, fit in fits.items()}
        return {what: " or ".join(f"policy={name}" for name in names or ["random"])
                for what, names in named.items()}  # fmt: skip

    @cached_property
    def seen(self) -> Any:
        """The observation space of the network, with stacked frames. Raises: ConfigError."""
        from rlrun.env.framestack import stack_space  # slow to import

        obs = self.obs.agent if isinstance(self.obs, JointSpace) else self.obs
        return stack_space(obs, self.config.env.frame_stack)

    @property
    def mask(self) -> Any:
        """The space of the action mask that the policy uses, or None."""
        from rlrun.functional.masks import MASK, has_mask  # slow to import

        return self.own_obs[MASK] if self.config.policy.masks and has_mask(self.own_obs) else None

    @cached_property
    def script_fault(self) -> str | None:
        """Why the action space does not contain the choices of a script, or None."""
        from rlrun.functional.explore import action_table

        policy = self.config.policy
        if not isinstance(policy, schema.ScriptedConfig) or policy.script in ("function", "sine"):
            return None
        try:
            action_table(policy.choices, self.action)
        except ValueError as e:
            return str(e)
        return None

    @property
    def has_goals(self) -> bool:
        from rlrun.env import goal_functions

        return goal_functions(self.config.env) is not None

    @property
    def seen_text(self) -> str:
        stack = self.config.env.frame_stack
        whose = "the environment has" if stack == 1 else f"with env.frame_stack = {stack} it sees"
        return f"{whose} {space_text(self.seen)}"


DERIVED: dict[str, Callable[[Facts], Any]] = {  # further attributes of ``Facts``
    "window": lambda c: c.policy.window,
    "control": lambda c: isinstance(c.policy, schema.ControlConfig),
    "trains": lambda c: c.policy.updates,
    "offline": lambda c: c.pipeline.name == "offline",
    "over_ray": lambda c: c.pipeline.name == "ray",
    # of a cluster, unless Ray starts it itself
    "address": lambda c: getattr(c.pipeline, "address", None),
    "agents_allowed": lambda c: " or ".join(f"agents={name}" for name in c.policy.agents),
    "cores": lambda c: os.cpu_count() or 1,
    # rows per sequence for a policy that learns from single rows by default
    "unroll_len": lambda c: c.policy.nstep + 15,
    "columns": lambda c: c.collector.columns(c.agents_of_env),
    "collectors": lambda c: getattr(c.pipeline, "num_actors", 1),
    # every collector has a replay of its own
    "replay_columns": lambda c: c.collectors * c.columns,
    "column_rows": lambda c: c.buffer.column_rows(c.replay_columns),
    # most rows of a collect call, if every second one is an end row
    "least_rollout":
        lambda c: c.columns * (2 * -(-c.collector.n_sample // c.collector.num_envs) + 1),
    # rows of a window and those read before it, in every column
    "least_capacity":
        lambda c: c.replay_columns * (c.window.rows + rows_before(c.env.frame_stack)),
    "one_column": lambda c: c.replay_columns == 1,
    "several_columns": lambda c: c.replay_columns > 1,
    "several_agents": lambda c: not c.single,
    "several_rows": lambda c: c.window is not None and c.window.learned > 1,
    "stride": lambda c: c.collector.stride(c.window),
    # windows that the replay holds
    "windows":
        lambda c: min(c.buffer.capacity // c.stride, c.buffer.window_capacity or c.buffer.capacity),
    "batch_rows": lambda c: c.learner.batch_size * c.stride,
    # the observation space of one agent
    "own_obs": lambda c: c.obs["observation"] if c.agents.name == "separate" else c.obs,
    # images among several parts of an observation
    "images": lambda c: [leaf for path, leaf in leaf_spaces(c.seen) if path and is_image(leaf)],
    # the least side of an image that a torso of convolutions alone reads; others: 0
    "cnn_side": lambda c: CNN_SIDES.get(c.torso.name, 0),
    "no_image": lambda c: c.cnn_side > 0 and not is_image(c.seen, c.cnn_side),
    "kind": lambda c: type(c.action).__name__,
    "continuous": lambda c: c.kind == "Box",
    "obstacle": lambda c: numpy_obstacle(c.config, c.obs),
    "bf16_fault": lambda c: bf16_fault(c.config),
    "obs_text": lambda c: space_text(c.own_obs),
    "action_text": lambda c: space_text(c.action),
    "image_text": lambda c: space_text(c.images[0] if c.images else c.seen),
    "with_memory": lambda c: c.policy.recurrent_variant or c.policies["have_memory"],
    "counterpart": lambda c:
        f"policy={c.policy.counterpart} is its counterpart; " if c.policy.counterpart else "",
    # for observations without an image that a torso of convolutions alone reads
    "other_torso": lambda c:
        "torso=image_and_vector" if c.images and c.torso.name == "nature_cnn" else
        "torso=mlp or agents.agent_id=false" if c.agents_of_env > 1 and c.agents.agent_id else
        "torso=mlp",
}  # fmt: skip


def _is_no_address(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    return address != "auto" and (not host or "://" in address)


_NO_DATA = "set buffer.load=DIR (rlrun export RUN_DIR DIR makes one), or pipeline=serial"
_ONE = "env.instances = 1: only one environment may exist, this needs another"
_SERIAL = "or set pipeline=serial"
_TEAM = "take env=twostep, env=relay or env=pettingzoo"
_NO_RELABEL, _NO_DEMOS = "set buffer.relabel=null", "set buffer.demos=null"
_RENAME = "rename the key or correct the mask"

SIZES = (  # evaluated with the columns of the config, then with those of the environment
    Rule("buffer.capacity", lambda c: c.policy.on_policy and c.buffer.capacity < c.least_rollout,
         "a collect call of {collector.n_sample} steps may bring {least_rollout} rows",
         "at least {least_rollout} are allowed",
         "set buffer.capacity={least_rollout} or lower collector.n_sample"),
    Rule("buffer.capacity", lambda c: c.window and c.buffer.capacity < c.least_capacity,
         "{replay_columns} columns of {column_rows} rows hold no window of {window.rows} rows",
         "at least {least_capacity} rows for {replay_columns} columns",
         "set buffer.capacity={least_capacity} or more"),
)  # fmt: skip

ADDRESS = (  # of a cluster, also that of hydra/launcher=ray
    Rule("pipeline.address", lambda c: c.address and _is_no_address(c.address),
         "is not host:port of a cluster's head", "host:port or auto",
         "run rlrun on a node of the cluster, or leave it out to start Ray here"),
    Rule("pipeline.address",
         lambda c: c.address and not is_loopback(c.address) and not has_token(),
         "anyone who reaches an open cluster can run code on it",
         "a cluster that asks for a token, or one on this machine, is allowed",
         "start it with RAY_AUTH_MODE=token and set RAY_AUTH_MODE and RAY_AUTH_TOKEN here too"),
)  # fmt: skip

ON_CONFIG = (
    # -- what an on-policy policy learns from ------------------------------------------------------
    Rule("buffer", lambda c: c.policy.on_policy and c.buffer.name != "rollout",
         "policy {policy.name} learns only from what its present weights have collected",
         "buffer=rollout is allowed", "or use a policy that replays: {policies[replay]}"),
    Rule("explore",
         lambda c: c.policy.on_policy and c.explore.name != "none" and not c.policy.explores,
         "policy {policy.name} explores by drawing from its own distribution",
         "explore=none is allowed", "leave explore out"),
    Rule("collector.unit", lambda c: c.policy.on_policy and c.collector.unit != "step",
         "the size of a rollout must be known beforehand", "step is allowed",
         "set collector.unit=step"),
    Rule("learner.update_per_collect",
         lambda c: c.policy.on_policy and c.learner.update_per_collect != 1,
         "policy {policy.name} learns from a rollout once and drops it", "1 is allowed",
         "set learner.update_per_collect=1 and learner.replay_ratio=null (passes over a rollout of "
         "ppo and pqn: policy.epochs)"),
    SIZES[0],
    Rule("pipeline", lambda c: c.policy.on_policy and c.pipeline.name == "overlapped"
         and not c.policy.tolerates_lag,
         "policy {policy.name} cannot learn from actions of weights one chunk old",
         "pipeline=serial is allowed", "or use {policies[tolerate_lag]}"),
    Rule("buffer", lambda c: not c.policy.on_policy and c.window and c.buffer.name == "rollout",
         "policy {policy.name} replays what it once collected",
         "uniform, prioritized or rank are allowed", "or use {policies[on_policy]}"),
    # -- windows -----------------------------------------------------------------------------------
    Rule("collector.overlap", lambda c: c.window and (c.collector.overlap or 0) >= c.window.rows,
         "windows of {window.rows} rows cannot share that many",
         "less than {window.rows} is allowed",
         "lower it or lengthen the window (burnin_step + learn_unroll_len)"),
    Rule("collector.learned_overlap",
         lambda c: c.window and c.collector.learned_overlap >= c.window.learned,
         "a window learns {window.learned} rows (learn_unroll_len - nstep)",
         "less than {window.learned} is allowed", "lower it or raise policy.learn_unroll_len"),
    SIZES[1],
    Rule("learner.batch_size", lambda c: c.window and c.learner.batch_size > c.windows
         and c.learner.batch_size > (c.buffer.window_capacity or np.inf),
         "the buffer holds at most {windows} windows", "1 to {windows} are allowed",
         "lower it, or raise buffer.window_capacity to {learner.batch_size}"),
    Rule("learner.batch_size", lambda c: c.window and c.learner.batch_size > c.windows,
         "the buffer holds at most {windows} windows ({buffer.capacity} rows)",
         "1 to {windows} are allowed", "lower it, or raise buffer.capacity to {batch_rows} rows"),
    Rule("learner.learning_starts",
         lambda c: c.window and c.learner.learning_starts > c.buffer.capacity,
         "the buffer never holds more than buffer.capacity = {buffer.capacity} rows",
         "0 to {buffer.capacity} are allowed", "lower it or raise buffer.capacity"),
    Rule("collector.unit", lambda c: c.window is None and c.collector.unit == "window",
         "policy {policy.name} has no windows", "step or episode", "set collector.unit=step"),
    # -- hindsight goals ---------------------------------------------------------------------------
    Rule("buffer.relabel", lambda c: c.window and c.buffer.relabel
         and (c.window[:2] != (0, 1) or c.collector.tiling != "lossless"),
         "hindsight goals are for single rows (a stored state saw the old goal)",
         "one learned row (policy=dqn, ddpg, td3 or sac) and collector.tiling=lossless",
         _NO_RELABEL),
    Rule("buffer.relabel", lambda c: c.window and c.buffer.relabel and c.env.frame_stack > 1,
         "goals are not stacked, env.frame_stack is {env.frame_stack}",
         "env.frame_stack=1 is allowed", _NO_RELABEL),
    Rule("buffer.relabel", lambda c: c.window and c.buffer.relabel and c.buffer.compress,
         "goals are looked up row by row, which compressed rows are not for",
         "buffer.compress=false is allowed", _NO_RELABEL),
    Rule("buffer.relabel", lambda c: c.window and c.buffer.relabel and c.buffer.device != "cpu",
         "the environment computes rewards on the host, buffer.device is {buffer.device}",
         "buffer.device=cpu is allowed", _NO_RELABEL),
    # -- one environment ---------------------------------------------------------------------------
    Rule("collector.num_envs",
         lambda c: c.env.instances and c.collector.num_envs != 1 and not c.offline,
         _ONE, "1 is allowed", "set collector.num_envs=1"),
    Rule("pipeline", lambda c: c.env.instances and c.pipeline.name not in ("serial", "offline"),
         _ONE, "serial is allowed", "set pipeline=serial"),
    Rule("pipeline",
         lambda c: c.env.id.startswith(OBJECT) and c.pipeline.name not in ("serial", "offline"),
         "the environment was made by a script, in its process", "serial is allowed",
         "set pipeline=serial"),
    Rule("env.eval_kwargs", lambda c: c.env.instances and c.env.eval_kwargs,
         _ONE, "an empty mapping is allowed", "set 'env.eval_kwargs={{}}'"),
    Rule("run.video_every", lambda c: c.env.instances and c.run.video_every is not None,
         _ONE, "null is allowed", "set run.video_every=null"),
    # -- pipeline=ray: roles in processes of their own ---------------------------------------------
    Rule("transport.copies", lambda c: not c.over_ray and c.transport.copies != "float32",
         "only collectors of pipeline=ray act with copies of another precision",
         "float32 is allowed", "set it"),
    Rule("pipeline", lambda c: c.over_ray and not c.trains,
         "policy {policy.name} learns nothing, so there is nothing to place",
         "a policy that learns", "set pipeline=serial, or use {policies[learn]}"),
    Rule("bonus", lambda c: c.over_ray and c.bonus.name != "none",
         "its statistics need columns that advance together, but collectors do not",
         "bonus=none is allowed", _SERIAL),
    *each(("mmap", "demos", "load"), lambda key: Rule(
        f"buffer.{key}", lambda c: c.collectors > 1 and getattr(c.buffer, key),
        "every collector has a replay of its own", "null is allowed", _SERIAL)),
    Rule("pipeline.inference", lambda c: c.over_ray and c.pipeline.inference == "central"
         and getattr(c.policy, "noisy", None) is not None and c.policy.noisy_resample == "chunk",
         "policy.noisy_resample=chunk keeps the noise of a chunk in its collector",
         "local is allowed", "set policy.noisy_resample=step"),
    *ADDRESS,
    # -- replay, demonstrations, datasets ----------------------------------------------------------
    Rule("buffer.device", lambda c: c.buffer.device not in ("cpu", c.device),
         "the networks are on device = {device}", "cpu or device = {device} is allowed",
         "set buffer.device=cpu or device={buffer.device}"),
    Rule("buffer.demos", lambda c: c.buffer.demos and c.buffer.device != "cpu",
         "demonstrations are kept in host memory, buffer.device is {buffer.device}",
         "buffer.device=cpu is allowed", _NO_DEMOS),
    Rule("buffer.demos", lambda c: c.buffer.demos and c.buffer.relabel,
         "demonstrations keep their goals, buffer.relabel is {buffer.relabel}",
         "buffer.relabel=null is allowed", _NO_DEMOS),
    Rule("buffer.demos", lambda c: c.buffer.demos and c.offline,
         "an offline run (pipeline=offline) collects no rows to mix them with",
         "buffer.load is allowed", _NO_DEMOS),
    *each(("load", "relabel", "demos", "compress"), lambda key: Rule(
        f"buffer.{key}", lambda c: c.window is None and getattr(c.buffer, key),
        "policy {policy.name} keeps no replay", "a policy that replays",
        f"set buffer.{key}={'false' if key == 'compress' else 'null'}")),
    *each(("load", "demos"), lambda key: Rule(
        "policy.trace",
        lambda c: c.policy.records_log_prob and getattr(c.buffer, key),
        f"it reads the probability of each action, which rows of a dataset lack (buffer.{key}="
        f"{{buffer.{key}}})", "nstep and the three q_lambda are allowed",
        "set policy.trace=watkins_q_lambda, or collect all rows")),
    Rule("policy.trace", lambda c: c.policy.records_log_prob and c.offline,
         "it reads the probability of each action, which rows of a dataset lack (pipeline=offline)",
         "nstep and the three q_lambda are allowed",
         "set policy.trace=watkins_q_lambda, or collect all rows"),
    Rule("pipeline", lambda c: c.offline and c.window is None,
         "policy {policy.name} learns nothing from a dataset", "serial is allowed",
         "set pipeline=serial"),
    Rule("learner.replay_ratio", lambda c: c.offline and c.learner.update_per_collect is None,
         "an offline run (pipeline=offline) collects no env steps to keep a ratio to", "null",
         "set learner=offline, or learner.replay_ratio=null learner.update_per_collect=1"),
    Rule("bonus", lambda c: c.offline and c.bonus.name != "none",
         "novelty counts visits, but an offline run (pipeline=offline) makes none",
         "none is allowed", "set bonus=none"),
    Rule("learner.learning_starts",
         lambda c: c.window and 0 < c.run.total_steps <= c.learner.learning_starts
         and getattr(c.buffer, "load", None) is None,
         "nothing would be learned in a run of {run.total_steps} env steps",
         "less than run.total_steps = {run.total_steps} is allowed",
         "lower it, raise run.total_steps, or evaluate only (run.total_steps=0)"),
    # -- this machine ------------------------------------------------------------------------------
    *each(("weights", "chunks"), lambda key: Rule(
        f"transport.{key}", lambda c: getattr(c.transport, key) == "pco"
        and find_spec("pcodec") is None,
        "the package pcodec is missing", "another coder is allowed",
        "pip install 'rlrun[pco]', or choose auto", ResourceError)),
    Rule("learner.threads", lambda c: (c.learner.threads or 0) > 4 * c.cores,
         "this machine has {cores} cores", "4 a core, or null, are allowed",
         "null is a fixed rule over shapes and cores"),
    # -- several agents ----------------------------------------------------------------------------
    Rule("agents", lambda c: c.agents.name not in c.policy.agents,
         "policy {policy.name} does not see agents that way",
         "{agents_allowed} is allowed", "set it, or use {policies[see_agents_so]}"),
    Rule("agents.agent_id", lambda c: c.agents.agent_id and c.agents.name == "joint",
         "agents=joint does not use it", "false is allowed",
         "set it, or policy.agent_id=true"),
    Rule("agents.agent_id", lambda c: c.agents.agent_id and c.agents.name == "separate",
         "agents=separate does not use it", "false is allowed", "set it, or agents=shared"),
    Rule("env.frame_stack", lambda c: c.agents.name == "joint" and c.env.frame_stack > 1,
         "joint rows are not stacked", "1 is allowed", "set env.frame_stack=1 or memory=gru"),
    # -- what a policy can do ----------------------------------------------------------------------
    Rule("bonus", lambda c: c.bonus.name != "none" and not c.policy.learns,
         "policy {policy.name} learns from no reward", "a policy that learns", "set bonus=none"),
    Rule("explore", lambda c: c.explore.name == "boltzmann" and not c.policy.has_values,
         "policy {policy.name} has no action values to take a softmax of",
         "explore=none is allowed", "or use {policies[have_values]}"),
    Rule("memory", lambda c: c.memory.name != "none" and not c.policy.recurrent,
         "policy {policy.name} sees single rows and has no memory", "memory=none is allowed",
         "use {with_memory}"),
    *each(("cuda_graph", "compile"), lambda key: Rule(
        f"learner.{key}", lambda c: getattr(c.learner, key)
        and not isinstance(c.policy, schema.ValueConfig),
        "policy {policy.name} has no updates of that kind", "false is allowed",
        "set it, or use {policies[have_graphs]}")),
    Rule("learner.cuda_graph", lambda c: c.learner.cuda_graph and c.agents.name == "separate",
         "agents have batches of different sizes, but a graph has one size",
         "false is allowed", "or set agents=shared"),
    Rule("learner.cuda_graph", lambda c: c.learner.cuda_graph
         and (getattr(c.policy, "noisy", None) is not None
              or getattr(c.policy, "distribution", None) == "implicit"),
         "noise and quantile levels are drawn on the host for every update", "false is allowed",
         "or set policy.noisy=null and no policy.distribution=implicit"),
    Rule("torso.layer_norm", lambda c: c.control and c.torso.layer_norm
         and c.torso.name == "mlp" and c.memory.name == "none",
         "the layers of policy {policy.name} belong to its heads, which have none",
         "false is allowed", "set torso.layer_norm=false"),
    Rule("policy.learn_unroll_len", lambda c: c.control and c.memory.name != "none"
         and c.policy.learn_unroll_len is None,
         "memory={memory.name} is learned over sequences of rows", "rows: learned rows + nstep",
         "use policy=rsac or policy=rtd3, or set policy.learn_unroll_len={unroll_len}"),
    Rule("policy.head_hidden", lambda c: c.control and not c.policy.head_hidden
         and (c.memory.name != "none" or c.torso.name != "mlp" or not c.torso.hidden),
         "the critic would be linear in the action", "at least one hidden layer is allowed",
         "set 'policy.head_hidden=[256]'"),
    *each(("wandb", "trackio", "mlflow"), lambda key: Rule(
        f"logger.{key}", lambda c: c.fresh and getattr(c.logger, key) not in (None, False)
        and find_spec(key) is None,
        f"the package {key} is missing", f"{'false' if key == 'trackio' else 'null'} is allowed",
        f"pip install 'rlrun[{key}]'",
        ResourceError)),
)  # fmt: skip

ON_SPACES = (
    # -- agents and actions ------------------------------------------------------------------------
    Rule("env.id", lambda c: c.single and c.agents.name != "shared"
         and "shared" in c.policy.agents,
         "it has one agent, agents={agents.name} needs several",
         "an environment of several agents is allowed", f"{_TEAM}, or set agents=shared"),
    Rule("policy", lambda c: c.single and c.agents.name != "shared",
         "it learns the value of a team, but {env.id} has one agent",
         "{policies[act_there]} fits", _TEAM),
    Rule("policy", lambda c: c.kind not in c.policy.actions,
         "it acts in {policy.actions} spaces, {env.id} has {kind}",
         "{counterpart}{policies[act_there]} fits", "or choose another env"),
    Rule("policy", lambda c: c.agents.name == "joint" and c.policy.learns
         and np.ndim(getattr(c.action, "nvec", 0)) > 1,
         "its agents choose one number each, but those of {env.id} choose several",
         "{policies[act_there]} fits", "or choose another env"),
    Rule("env.id", lambda c: c.trains and 0 in (c.action.shape or ()),
         "an action holds no number: {action_text}",
         "an action of at least one number is allowed", "use policy=random or policy=scripted"),
    Rule("env.id", lambda c: c.kind == "Box" and not isinstance(c.policy, schema.OnPolicyConfig)
         and not bounded(c.action).all(),
         "its actions have no bounds whose distance float32 holds: {action_text}",
         "a Box with finite low and high is allowed",
         "wrap the environment, or use policy=ppo, a2c or impala"),
    Rule("env.id", lambda c: c.kind == "Box" and c.action.dtype.kind != "f" and c.policy.learns,
         "its actions are whole numbers: {action_text}", "a Box of floats is allowed",
         "use policy=random"),
    Rule("policy.script", lambda c: getattr(c.policy, "script", None) == "sine"
         and (c.kind != "Box" or c.action.dtype.kind != "f"),
         "it moves real numbers, but the actions are {action_text}",
         "constant, cycle, uniform or function is allowed", "set policy.script=cycle"),
    Rule("policy.choices", lambda c: c.script_fault, "{script_fault}",
         "numbers within the bounds are allowed (Discrete actions count from 0)",
         "change policy.choices"),
    # -- observations ------------------------------------------------------------------------------
    Rule("env.id", lambda c: c.mask and c.kind != "Discrete",
         "it observes an action_mask, but its actions are {kind}",
         "a mask of Discrete actions is allowed", _RENAME),
    Rule("env.id", lambda c: c.mask and c.mask.shape != (int(c.action.n),),
         "its observation's action_mask is of shape {mask.shape}",
         "one number per action, [{action.n}], is allowed", _RENAME),
    Rule("env.frame_stack", lambda c: c.mask and c.env.frame_stack > 1,
         "masks are not stacked, but {env.id} observes an action_mask", "1 is allowed",
         "set it to 1"),
    Rule("policy.normalize_obs", lambda c: getattr(c.policy, "normalize_obs", False)
         and (not isinstance(c.own_obs, gym.spaces.Box) or c.own_obs.dtype.kind != "f"),
         "{env.id} observes {obs_text}, which has no running mean",
         "a Box of real numbers is needed", "set policy.normalize_obs=false"),
    Rule("learner.backend", lambda c: c.learner.backend == "numpy" and c.obstacle,
         "no numpy kernel computes this update ({obstacle})", "auto and torch are allowed",
         "set learner.backend=auto, which uses one if there is one"),
    Rule("buffer.relabel", lambda c: c.buffer.relabel and not c.has_goals,
         "{env.id} observes no goals",
         "a dict of observation, achieved_goal and desired_goal is needed",
         "use env=bitflip, a goal environment of yours, or buffer.relabel=null"),
    # -- torso -------------------------------------------------------------------------------------
    Rule("torso", lambda c: c.no_image, "it needs images, {seen_text}",
         "uint8 or float Box of three dimensions, sides >= {cnn_side}", "use {other_torso}"),
    Rule("torso", lambda c: c.torso.name == "image_and_vector" and not c.images
         and not is_image(c.seen),
         "it needs an image, {seen_text}",
         f"a Dict or Tuple with a Box of three dimensions, sides >= {CNN_SIDE}, is allowed",
         "use torso=mlp"),
    Rule("torso", lambda c: c.torso.name == "mlp" and c.trains and c.images,
         "layers of {torso.hidden} units would see {image_text} as one flat row",
         "torso=image_and_vector is allowed", "set torso=image_and_vector, or pick other parts "
         "with 'env.wrappers=[{{name: filter_obs, keys: [...]}}]'"),
    Rule("torso", lambda c: c.torso.name == "mlp" and c.trains and is_image(c.seen),
         "layers of {torso.hidden} units would see {image_text} as one flat row",
         "torso=nature_cnn is allowed",
         "set torso=nature_cnn, or 'env.wrappers=[flatten_obs]' if that is meant"),
)  # fmt: skip

ON_DATASET = (
    Rule("buffer.capacity", lambda c: c.offline and c.loaded_rows > c.buffer.capacity,
         "the dataset has {steps} steps in {trajectories} trajectories, the oldest lost",
         "{loaded_rows} rows hold them in one column",
         "set buffer.capacity={loaded_rows} or more"),
    Rule("learner.learning_starts", lambda c: c.offline and c.steps < c.learner.learning_starts,
         "the dataset has {steps} steps, nothing would be learned", "0 to {steps} are allowed",
         "set learner.learning_starts=0, or load a larger dataset"),
)  # fmt: skip

AT_LAST = (  # a dataset does not repair settings that do not fit
    Rule("buffer.load", lambda c: c.offline and c.buffer.load is None,
         "an offline run (pipeline=offline) has no other rows to learn from",
         "a dataset directory or minari:ID is allowed", _NO_DATA),
)  # fmt: skip

PRECISION = (  # separate: testing for an LSTM in bf16 on a CPU imports torch
    Rule("learner.precision", lambda c: c.learner.precision == "tf32" and c.device == "cpu",
         "a CPU has no TF32", "float32 and bf16 are allowed", "set it, or device=cuda"),
    Rule("learner.precision", lambda c: c.learner.precision == "bf16" and c.bf16_fault,
         "{bf16_fault}", "float32 is allowed",
         "set learner.precision=float32, or use memory=gru, another CPU or a GPU", ResourceError),
)  # fmt: skip


def require_all(rules: Iterable[Rule], facts: Facts) -> None:
    """Raise the error of the first rule that rejects the config."""
    for rule in (rule for rule in rules if rule.when(facts)):
        text = f"{rule.key} = {format_value(facts.value(rule.key))}: {rule.text(facts)}"
        raise ConfigError(text, key=rule.key) if rule.kind is ConfigError else rule.kind(text)
