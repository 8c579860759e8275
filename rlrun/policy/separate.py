"""Independent learners: one policy with its own parameters for each agent of a team.

Source: Tan, "Multi-Agent Reinforcement Learning: Independent vs. Cooperative Agents", 1993. Works
with any policy. Agent i acts in its own columns and learns from their windows. A window's agent is
part of its observations (``rlrun.spaces.AgentSpace``) but hidden from the policies. A rollout has
all columns in order.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlrun.spaces import tree_map
from rlrun.types import Act, Actor, ActRow, Policy, Sample, Segment, Spec, Tree, Update, generator

Make = Callable[[Spec, int], Policy]


class Separate:
    """N policies whose actions, updates and priorities are joined by column."""

    def __init__(self, make: Make, *, spec: Spec, seed: int) -> None:
        """``make``: (spec of one agent, seed) -> Policy."""
        space = spec.obs
        assert isinstance(space, gym.spaces.Dict), "checked in rlrun.config"
        agent_spec, number = Spec(space["observation"], spec.action), space["agent"]
        assert number.shape is not None
        self.size = number.shape[-1]  # stacked frames are a leading axis
        seeds = [int(generator(seed, f"agent{i}").integers(2**32)) for i in range(self.size)]
        self.policies = [make(agent_spec, s) for s in seeds]
        self.window = self.policies[0].window
        self.generator = generator(seed, "explore")
        self.seconds = dict(self.policies[0].seconds)

    @property
    def generator(self) -> np.random.Generator:
        """The exploration generator, shared by all policies; each saves its state."""
        return self.policies[0].generator

    @generator.setter
    def generator(self, value: np.random.Generator) -> None:
        for policy in self.policies:
            policy.generator = value

    def actor(self, num_envs: int) -> "SeparateActor":
        """Return an actor. ``num_envs`` counts columns, N per environment."""
        return SeparateActor([p.actor(num_envs // self.size) for p in self.policies])

    # -- learning --------------------------------------------------------------------------------

    def update(self, sample: Sample) -> Update:
        """Take one learning step per agent on its windows in ``sample``, if there are any.

        Metrics are means over the agents that learned, ``steps`` is the largest number of any
        agent.
        """
        done: list[tuple[Tensor, Update]] = []
        for which, part, policy in self._parts(sample):
            done.append((which, policy.update(part)))
        self.seconds = {k: sum(p.seconds[k] for p in self.policies) for k in self.seconds}
        metrics = [update.metrics for _, update in done]
        mean = {k: torch.stack([torch.as_tensor(m[k]) for m in metrics]).mean() for k in metrics[0]}
        return Update(self._join_priorities(sample, done), mean, max(u.steps for _, u in done))

    def priority(self, sample: Sample) -> Tensor:
        """Return the |TD| priority [B] of every window, by its agent's policy."""
        parts = self._parts(sample)
        updates = [(which, Update(policy.priority(part), {})) for which, part, policy in parts]
        together = self._join_priorities(sample, updates)
        assert together is not None
        return together

    def _parts(self, sample: Sample) -> list[tuple[Tensor, Sample, Policy]]:
        """Return (window index, sample of those windows, policy) of every agent that has windows.

        Keys of a rollout are its columns, counted per agent. Agents without a valid row in it are
        left out.
        """
        count, seen = sample.segment.valid.shape[1], sample.segment.valid.any(0)
        rollout = self.window is None
        keys = sample.key // self.size if rollout else sample.key
        agent_of = torch.arange(count) % self.size if rollout else agents_of(sample.segment)
        out = []
        for i, policy in enumerate(self.policies):
            which = (agent_of == i).nonzero().squeeze(-1)
            if seen[which].any() if rollout else len(which):
                key, weight = keys[which.numpy(force=True)], sample.weight[which]
                part = Sample(windows(sample.segment, which), weight, key, sample.env_steps)
                out.append((which, part, policy))
        return out

    @staticmethod
    def _join_priorities(sample: Sample, parts: list[tuple[Tensor, Update]]) -> Tensor | None:
        """Return priorities [B] in the order of the sample."""
        joined = torch.zeros_like(sample.weight)
        for which, update in parts:
            if update.priority is None:
                return None
            joined[which] = update.priority.to(joined)
        return joined

    # -- state -----------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """Return every policy's weights, with names prefixed by the agent's number."""
        named = enumerate(p.weights() for p in self.policies)
        return {f"{i}.{name}": w for i, weights in named for name, w in weights.items()}

    def load(self, weights: dict[str, Tensor]) -> None:
        for i, policy in enumerate(self.policies):
            mine = {k: w for k, w in weights.items() if k.startswith(f"{i}.")}
            policy.load({k.partition(".")[2]: w for k, w in mine.items()})

    def state_dict(self) -> dict[str, Any]:
        return {str(i): policy.state_dict() for i, policy in enumerate(self.policies)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for i, policy in enumerate(self.policies):
            policy.load_state_dict(state[str(i)])


class SeparateActor:
    """Actors of N agents. Column e N + i belongs to agent i."""

    def __init__(self, actors: list[Actor]) -> None:
        self.actors, self.size = actors, len(actors)
        self.extras = tree_map(self._join, *(a.extras for a in actors))

    def refresh(self) -> None:
        for actor in self.actors:
            actor.refresh()

    def initial_state(self) -> Tree:
        return tree_map(self._join, *(a.initial_state() for a in self.actors))

    def act(self, *row: *ActRow, explore: np.ndarray | None) -> Act:
        inputs = (row[0]["observation"], *row[1:])
        acts = []
        for i, actor in enumerate(self.actors):
            agent_inputs = tree_map(lambda x, i=i: np.ascontiguousarray(x[i :: self.size]), inputs)
            epsilon = None if explore is None else explore[i :: self.size]
            acts.append(actor.act(*agent_inputs, explore=epsilon))
        return Act(*(tree_map(self._join, *(getattr(a, n) for a in acts)) for n in ACT))

    @staticmethod
    def _join(*each: np.ndarray) -> np.ndarray:
        """Interleave arrays [E, ...], one per agent, to [E N, ...]."""
        return np.stack(each, 1).reshape(-1, *each[0].shape[1:])


ACT = ("action", "extras", "state")


def agents_of(segment: Segment) -> Tensor:
    """Return the agent of every window, int64 [B], read where its rows are valid."""
    number = segment.obs["agent"][:-1]
    while number.ndim > 3:  # stacked frames: all equal
        number = number[:, :, -1]
    seen = torch.where(segment.valid.unsqueeze(-1), number, torch.zeros_like(number))
    return seen.amax(0).argmax(-1)


def windows(segment: Segment, which: Tensor) -> Segment:
    """Return the windows ``which`` of a segment, their observations without the agent's number."""

    def select(tree: Tree) -> Tree:
        return tree_map(lambda x: x[:, which], tree)

    timed = ("first", "action", "reward", "terminated", "truncated", "valid", "states")
    fields = {n: select(getattr(segment, n)) for n in timed}
    before = ("prev_action", "prev_reward")  # of the row before the window: [B, ...]
    extras = {k: x[which] if k in before else x[:, which] for k, x in segment.extras.items()}
    state = tree_map(lambda x: x[which], segment.state)
    obs = select(segment.obs["observation"])
    return replace(segment, obs=obs, extras=extras, state=state, **fields)
