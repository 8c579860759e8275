"""An online network, the target network that lags behind it, and the Adam that moves the first."""

import copy
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from rlrun.optim.adam import Adam
from rlrun.optim.autograd import Autograd, Backprop
from rlrun.schema import ControlConfig, ValueConfig

Net = TypeVar("Net", bound=nn.Module)


class Trained(Generic[Net]):
    """A network, the Adam that moves it, and the target network that follows it."""

    def __init__(self, net: Net, config: ControlConfig) -> None:
        self.net, self.config = net, config
        self.target: Net = copy.deepcopy(net).requires_grad_(False)
        self.online: list[Tensor] = list(net.parameters())
        self.lagging: list[Tensor] = list(self.target.parameters())
        self.adam = Adam(self.online, eps=config.adam_eps, grad_clip=config.grad_clip)
        self.updates = 0

    def gradient(self, output: Tensor, slope: Tensor | None = None) -> list[Tensor]:
        """d output / d parameters, ``output`` weighed by ``slope``; the parameters stay."""
        return list(torch.autograd.grad(output, self.online, slope))

    def step(self, gradient: list[Tensor], lr: float) -> Tensor:
        """One descent; the gradient's norm before clipping, 0-d."""
        self.updates += 1
        return self.adam.step(gradient, lr)

    @torch.no_grad()
    def follow(self, updates: int, since: int) -> None:
        """The target: a soft step, or a copy where ``updates`` passed ``target_update_every``.

        ``updates``: of the critics; ``since``: how many of them since the last call.
        """
        every, theta = self.config.target_update_every, self.config.target_tau
        if theta is not None:
            torch._foreach_lerp_(self.lagging, self.online, theta)
        elif every is not None and updates // every > (updates - since) // every:
            torch._foreach_copy_(self.lagging, self.online)

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": dict(self.net.state_dict()),
            "target": dict(self.target.state_dict()),
            "adam": self.adam.state_dict(),
            "updates": self.updates,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.target.load_state_dict(state["target"])
        self.adam.load_state_dict(state["adam"])
        self.updates = int(state["updates"])


class TargetPair(Generic[Net]):
    """Gradient steps on ``net``; ``target`` follows by hard copies or by soft steps."""

    def __init__(
        self,
        net: Net,
        config: ValueConfig,
        lr_at: Callable[[int], float],
        backprop: Backprop | None = None,
    ) -> None:
        """``lr_at``: env_steps -> learning rate. ``backprop``: of ``net``; None: recorded."""
        back = backprop or Autograd(net)
        self.slopes = back.slopes
        self.net, self.config, self.lr_at = net, config, lr_at
        self.target: Net = copy.deepcopy(net).requires_grad_(False)
        self.online: list[Tensor] = list(net.parameters())
        self.lagging: list[Tensor] = list(self.target.parameters())
        self.adam = Adam(back.parameters, eps=config.adam_eps, grad_clip=config.grad_clip)
        self.updates = 0
        self.seconds = {"backward": 0.0, "optimiser": 0.0}

    def descend(self, q: Tensor, slope: Tensor, lr: float | Tensor) -> Tensor:
        """Move along the loss whose slope over ``q`` is ``slope``; the gradient norm, unclipped."""
        began = time.perf_counter()
        grads = self.slopes(q, slope)
        backward = time.perf_counter()
        self.seconds["backward"] += backward - began
        norm = self.adam.step(grads, lr)
        self.seconds["optimiser"] += time.perf_counter() - backward
        return norm

    @torch.no_grad()
    def follow(self) -> None:
        """Count an update; the target moves after the online network has."""
        self.updates += 1
        every, theta = self.config.target_update_every, self.config.target_tau
        if theta is not None:
            torch._foreach_lerp_(self.lagging, self.online, theta)
        elif every is not None and self.updates % every == 0:
            torch._foreach_copy_(self.lagging, self.online)

    def weights(self) -> dict[str, Tensor]:
        """The online parameters, detached, not copied."""
        return dict(self.net.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return {
            "net": self.weights(),
            "target": dict(self.target.state_dict()),
            "adam": self.adam.state_dict(),
            "updates": self.updates,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.target.load_state_dict(state["target"])
        self.adam.load_state_dict(state["adam"])
        self.updates = int(state["updates"])
