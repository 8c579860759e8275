"""A non-negative coefficient that a loss adjusts: SAC's temperature, CQL's penalty weight."""

import math
from typing import Any

import torch
from torch import Tensor

from rlrun.optim.adam import Adam


class LagrangeMultiplier:
    """A coefficient >= 0, stored as its logarithm with an Adam of its own."""

    def __init__(self, start: float, *, eps: float, device: torch.device) -> None:
        log = math.log(start) if start > 0 else -math.inf
        self.log = torch.tensor(log, device=device, requires_grad=True)
        self.adam = Adam([self.log], eps=eps, grad_clip=None)

    def value(self) -> Tensor:
        """The coefficient, 0-d, detached."""
        return self.log.detach().exp()

    def step(self, loss: Tensor, lr: float) -> None:
        """One gradient step on ``loss``."""
        self.apply_gradient(torch.autograd.grad(loss, [self.log])[0], lr)

    def apply_gradient(self, grad: Tensor, lr: float) -> None:
        """One gradient step; ``grad`` [] is d loss / d log."""
        self.adam.step([grad], lr)

    def state_dict(self) -> dict[str, Any]:
        return {"log": self.log.detach(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.log.copy_(state["log"])
        self.adam.load_state_dict(state["adam"])
