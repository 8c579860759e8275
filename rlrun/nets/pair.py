"""An online network, the target network that lags behind it, and the Adam that moves the first."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rlrun.nets.qnet import QNet
from rlrun.schema import ValueConfig
from rlrun.types import tree_map


class TargetPair:
    """Gradient steps on ``net``; ``target`` follows by hard copies or by soft steps."""

    def __init__(self, net: QNet, config: ValueConfig, lr_at: Callable[[int], float]) -> None:
        """``lr_at``: env_steps -> learning rate."""
        self.net, self.config, self.lr_at = net, config, lr_at
        self.target = copy.deepcopy(net).requires_grad_(False)
        self.optimizer = torch.optim.Adam(
            net.parameters(), lr=lr_at(0), eps=config.adam_eps, fused=True
        )
        self.online: list[Tensor] = list(net.parameters())
        self.lagging: list[Tensor] = list(self.target.parameters())
        self.updates = 0

    def step(self, loss: Tensor, env_steps: int) -> Tensor:
        """Descend on ``loss``, then move the target; the gradient norm before clipping (0-d)."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr_at(env_steps)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        clip = self.config.grad_clip or float("inf")
        norm = nn.utils.clip_grad_norm_(self.online, clip)
        self.optimizer.step()
        self.updates += 1
        self._follow()
        return norm.detach()

    @torch.no_grad()
    def _follow(self) -> None:
        every, theta = self.config.target_update_every, self.config.target_theta
        if theta is not None:
            torch._foreach_lerp_(self.lagging, self.online, theta)
        elif every is not None and self.updates % every == 0:
            torch._foreach_copy_(self.lagging, self.online)

    def weights(self) -> dict[str, Tensor]:
        """The online parameters, detached, not copied."""
        return dict(self.net.state_dict())

    def state_dict(self) -> dict[str, Any]:
        moments = self.optimizer.state_dict()["state"]
        return {
            "net": self.weights(),
            "target": dict(self.target.state_dict()),
            "optimizer": {str(i): dict(m) for i, m in moments.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.target.load_state_dict(state["target"])
        groups = self.optimizer.state_dict()["param_groups"]
        moments = {int(i): tree_map(torch.clone, m) for i, m in state["optimizer"].items()}
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.updates = int(state["updates"])
