"""Q-networks that say a distribution of returns, or whose heads are noisy, or both."""

from collections.abc import Iterator

from torch import Tensor, nn

from rlrun.functional.distributional import cosines, midpoints, support
from rlrun.functional.value import dueling
from rlrun.nets.draw import MEAN, Draw
from rlrun.nets.noisy import Noise, NoisyMLP
from rlrun.nets.qnet import QNet
from rlrun.nets.torso import mlp
from rlrun.schema import MemoryConfig, SwitchedConfig, TorsoConfig, ValueConfig
from rlrun.types import Spec


class DistNet(QNet):
    """Torso and memory of ``QNet`` under heads with N numbers per action.

    none         Q itself (noisy heads)
    categorical  logits of N atoms; Bellemare et al. 2017
    quantile     quantiles at the N midpoints; Dabney et al. 2018a
    implicit     quantiles at any levels tau: the heads see features * phi(tau),
                 phi(tau) = relu(W cos(pi i tau) + b); Dabney et al. 2018b, eq. 4
    Dueling streams are joined per atom or quantile (Hessel et al. 2018).
    """

    def __init__(
        self, policy: SwitchedConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
    ) -> None:
        super().__init__(policy, torso, memory, spec)
        self.kind, self.cosines = policy.distribution, policy.cosines
        self.embed = None
        grid: Tensor | None = None
        if self.kind == "categorical":
            grid = support(policy.v_min, policy.v_max, policy.atoms)
        elif self.kind == "implicit":
            grid = midpoints(policy.taus_act)
            self.embed = mlp([self.cosines, self.memory.size], "relu", last=True)
        self.register_buffer("grid", grid, persistent=False)  # atoms z, or levels for acting

    def stream(self, sizes: list[int], activation: str, policy: ValueConfig) -> nn.Module:
        """The layers of one head, its last one as wide as the distribution needs."""
        assert isinstance(policy, SwitchedConfig)
        each = policy.atoms if policy.distribution in ("categorical", "quantile") else 1
        sizes = [*sizes[:-1], sizes[-1] * each]
        if policy.noisy is None:
            return mlp(sizes, activation, last=False)
        return NoisyMLP(sizes, activation, sigma=policy.noisy)

    def say(self, h: Tensor, draw: Draw) -> Tensor:
        """Memory outputs [*, H] -> [*, A, N] (none: [*, A])."""
        if self.kind == "implicit":
            h = h.unsqueeze(-2) * self.embedding(draw.taus)  # [*, N, H]
        noise = iter(draw.noise) if draw.noise else None
        advantage = _through(self.advantage, h, noise)
        value = None if self.value is None else _through(self.value, h, noise)
        if self.kind in ("none", "implicit"):
            q = advantage if value is None else dueling(value, advantage)
            return q if self.kind == "none" else q.movedim(-1, -2)
        advantage = advantage.reshape(*h.shape[:-1], self.actions, -1)
        if value is None:
            return advantage
        return value.unsqueeze(-2) + advantage - advantage.mean(-2, keepdim=True)

    def embedding(self, taus: Tensor | None = None) -> Tensor:
        """phi [*, N, H] of the levels ``taus`` [*, N]; None: those for acting, the midpoints."""
        assert self.embed is not None, "distribution = implicit"
        levels = self.get_buffer("grid") if taus is None else taus
        phi: Tensor = self.embed(cosines(levels, self.cosines))
        return phi

    def mean(self, said: Tensor) -> Tensor:
        """Action values [*, A] of what ``say`` said."""
        if self.kind == "none":
            return said
        if self.kind == "categorical":
            return said.softmax(-1) @ self.get_buffer("grid")
        return said.mean(-1)

    def q(self, h: Tensor, draw: Draw = MEAN) -> Tensor:
        """Memory outputs [*, H] -> action values [*, A]."""
        return self.mean(self.say(h, draw))


def _through(stream: nn.Module, x: Tensor, noise: Iterator[Noise] | None) -> Tensor:
    out: Tensor = stream(x, noise) if isinstance(stream, NoisyMLP) else stream(x)
    return out
