"""All numbers derived from a config, computed once."""

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from rlrun.buffer import saved
from rlrun.buffer.layout import Layout, Row, demo_config, make_layout, row_of
from rlrun.config.backend import Backend, choose_backend, custom_state
from rlrun.env import known_spaces
from rlrun.env.framestack import stack_space
from rlrun.schema import Config, ControlConfig
from rlrun.types import Spec, Window, generator

EnvSpaces = tuple[Any, Any, int]  # observation, action; columns of one environment

_MAX_THREADS = 8
_MOST_THREADS = 4096  # accepted in a checkpoint
_SETTINGS = ("horizon", "threads", "target_thread")  # fixed when a run begins, see ``Plan.resumed``


@dataclass(frozen=True, slots=True)
class EnvSeeds:
    """The first environment seed of each purpose. Environments add 0, ..., E - 1."""

    collect: int
    eval: int  # evaluations during training
    final: int  # ``rlrun eval``

    @classmethod
    def of(cls, seed: int) -> "EnvSeeds":
        """Return the seeds of a run, each in a range of 2^29 of its own."""
        collect, evaluate, final = (
            int(generator(seed, f"env/{name}").integers(2**28)) for name in cls.__slots__
        )
        return cls(collect, 2**29 + evaluate, 2**30 + final)


@dataclass(frozen=True, slots=True)
class Plan:
    """A config with its derived numbers.

    Thread count, target thread and backend follow from a fixed rule over shapes, cores and device,
    never from a measurement.
    """

    config: Config
    row_spec: Spec  # spaces of a collected row: single frames
    policy_spec: Spec  # spaces the policy sees: frames stacked
    columns: int  # one per environment, or per agent with its own rows
    columns_per_env: int
    row: Row  # arrays of one collected row, without those that an actor adds
    window: Window | None  # None: the policy keeps no replay
    layout: Layout | None  # arrays of the replay, before its size is checked
    env_seeds: EnvSeeds
    threads: int  # of torch
    target_thread: bool  # whether an update gets a second thread
    backend: Backend  # computes updates: a numpy kernel or autograd
    horizon: int  # env steps of schedules without their own end

    def displaces_kernel(self) -> bool:
        """Return whether ``learner.precision`` alone keeps updates from a kernel on the CPU."""
        exact = replace(self.config, learner=replace(self.config.learner, precision="float32"))
        backend = choose_backend(exact, self.row_spec.obs, self.threads)
        return (backend.name, self.backend.name) == ("numpy", "torch")

    def settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run takes over from the beginning of the run."""
        return {name: getattr(self, name) for name in _SETTINGS}

    def resumed(self, settings: dict[str, Any]) -> "Plan":
        """Return this plan with the settings of the run's beginning, except those given again.

        Then other numbers of cores or of ``run.total_steps`` change neither arithmetic nor
        schedules. ``resume.rescale`` asks for schedules over the present ``run.total_steps``.

        Raises: CheckpointError if the settings are not those of a checkpoint.
        """
        learner, no_steps = self.config.learner, settings["horizon"] == 0  # the run only evaluated
        is_given = {
            "horizon": self.config.resume.rescale or no_steps,
            "threads": learner.threads is not None,
            "target_thread": learner.target_thread is not None,
        }
        saved.integer("settings.horizon", settings["horizon"], 0, saved.MOST_ROWS)
        saved.integer("settings.threads", settings["threads"], 1, _MOST_THREADS)
        is_flag = isinstance(settings["target_thread"], bool)
        saved.require(is_flag, "settings.target_thread", "is neither true nor false")
        plan = replace(self, **{n: settings[n] for n in _SETTINGS if not is_given[n]})
        backend = choose_backend(self.config, self.row_spec.obs, plan.threads)
        return replace(plan, backend=backend)


def make_plan(config: Config, spaces: EnvSpaces | None = None) -> Plan:
    """Derive all numbers. ``spaces``: of one environment; None: make one to get them."""
    obs, action, per_env = spaces or known_spaces(config.env, config.agents)
    columns = config.collector.columns(per_env)
    row = row_of(config, obs, action, custom_state(config.memory))
    window = config.policy.window
    threads = _thread_count(config)
    backend = choose_backend(config, obs, threads)
    return Plan(
        config,
        row_spec=Spec(obs, action),
        policy_spec=Spec(stack_space(obs, config.env.frame_stack), action),
        columns=columns,
        columns_per_env=per_env,
        row=row,
        window=window,
        layout=None if window is None else make_layout(config, row, window, columns),
        env_seeds=EnvSeeds.of(config.seed),
        threads=threads,
        target_thread=_target_thread(config, threads, backend),
        backend=backend,
        horizon=config.run.total_steps,
    )


def plan_of_demos(plan: Plan, lengths: list[int]) -> Plan:
    """Return the plan of a replay that keeps demonstrations of ``lengths`` steps in one column."""
    assert plan.window is not None
    config = demo_config(plan.config, plan.row, plan.window, lengths)
    layout = make_layout(config, plan.row, plan.window, 1)
    return replace(plan, config=config, columns=1, layout=layout)


def _thread_count(config: Config) -> int:
    """Return ``learner.threads``, or several threads if an update's matrix products are large.

    Measured on 2 cores. Windows: one thread up to batch 32 x 32 units, several from 64 x 64 on.
    Single rows through linear layers need far more: DQN with 256 rows x 256 units took 3 to 5 ms
    per update with one thread, 8 to 17 with two.
    """
    width = max(config.memory.hidden, *config.torso.hidden, 1)
    large = config.learner.batch_size * width >= (2**18 if _feed_forward(config) else 4096)
    return config.learner.threads or (min(_free_cores(config), _MAX_THREADS) if large else 1)


def _target_thread(config: Config, threads: int, backend: Backend) -> bool:
    """Return ``learner.target_thread``, or the value of a rule over shapes.

    Measured on 2 cores with two torch threads. Target network of windows: from 64 windows x 128
    hidden units on, it saves 8 to 20 % of an update, with a kernel a quarter from 64 x 64 on. Actor
    of single rows: 30 to 40 % with 256 rows and layers of 256 and 256 units, -25 to 15 % with 128
    and 128. Below that it costs more than it saves.
    """
    c = config.learner
    if c.target_thread is not None:
        return c.target_thread
    if config.device != "cpu":
        return c.cuda_graph  # else launching kernels takes the time, which threads do not share
    alone = config.agents.name != "separate"  # agents split the batch
    halves = alone and config.policy.name in ("ddpg", "td3", "sac")  # critics' and actor's
    if halves and _feed_forward(config):
        assert isinstance(config.policy, ControlConfig)
        sizes = pairwise((*config.torso.hidden, *config.policy.head_hidden))
        # Weights between hidden layers dominate an update's products.
        large = c.batch_size * sum(fan_in * fan_out for fan_in, fan_out in sizes) >= 2**24
        several = c.threads != 1 and _free_cores(config) >= 2
    else:
        least = 4096 if backend.name == "numpy" else 8192
        large = c.batch_size * config.memory.hidden >= least
        several = threads >= 2
    return several and large


def _free_cores(config: Config) -> int:
    """Return the number of cores left to the learner. Collectors in other processes take one.

    A job of a sweep has its worker's share of the machine (RLRUN_CORES).
    """
    share = os.environ.get("RLRUN_CORES", "")
    cores = int(share) if share.isdecimal() else os.cpu_count() or 1
    return max(1, cores - (config.pipeline.name in ("overlapped", "ray")))


def _feed_forward(config: Config) -> bool:
    return config.memory.name == "none" and config.torso.name == "mlp"
