"""An online network with its optimiser, and the target network that tracks it."""

import copy
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from rlrun.optim.adam import Adam
from rlrun.schema import ControlConfig, ValueConfig

Net = TypeVar("Net", bound=nn.Module)


class OnlineTarget(Generic[Net]):
    """Online network ``net`` with its Adam, and ``target``, its copy by hard or soft steps."""

    def __init__(
        self,
        net: Net,
        config: ControlConfig | ValueConfig,
    ) -> None:
        self.net, self.config = net, config
        self.target: Net = copy.deepcopy(net).requires_grad_(False)
        self.params: list[Tensor] = list(net.parameters())
        self.target_params: list[Tensor] = list(self.target.parameters())
        self.adam = Adam(self.params, eps=config.adam_eps, grad_clip=config.grad_clip)
        self.updates = 0

    def grads(self, output: Tensor, output_grad: Tensor | None = None) -> list[Tensor]:
        """d loss / d parameters, given d loss / d ``output``; None: ``output`` is the loss."""
        return list(torch.autograd.grad(output, self.params, output_grad))

    @torch.no_grad()
    def update_target(self, updates: int, since: int = 1) -> None:
        """A soft step, or a hard copy where ``updates`` passed a multiple of target_update_every.

        ``since``: how many of the ``updates`` were made since the last call.
        """
        every, tau = self.config.target_update_every, self.config.target_tau
        if tau is not None:
            torch._foreach_lerp_(self.target_params, self.params, tau)
        elif every is not None and updates // every > (updates - since) // every:
            torch._foreach_copy_(self.target_params, self.params)

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
