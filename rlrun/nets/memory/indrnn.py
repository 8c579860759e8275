"""IndRNN: rectified units without connections between them."""

import torch
from torch import Tensor, nn

from rlrun.nets.memory.cell import RowCell, at_least_float32
from rlrun.schema import IndRNNConfig, MemoryConfig
from rlrun.types import Tree


class IndRNN(RowCell):
    """h_t = relu(W x_t + u * h_{t-1} + b), |u| <= 2^(1/T), T = ``memory.horizon``.

    The limit bounds the growth of a state and of a gradient over T rows by 2. It applies to the
    weights that rows use; gradients pass as if there were none, so that a weight can come back.
    (The paper's code clips the parameter itself.) State h [B, H] in float32 at least.
    Initialisation: u uniform on [0, 2^(1/T)], W uniform (LeCun), b zero.
    Source: Li et al. 2018, "Independently Recurrent Neural Network (IndRNN)", equation 2 and
    sections 3-4.
    """

    def __init__(self, config: MemoryConfig, features: int) -> None:
        assert isinstance(config, IndRNNConfig)
        super().__init__(config, features)
        self.limit = 2 ** (1 / config.horizon)
        self.input = nn.Linear(features, config.hidden)
        self.u = nn.Parameter(torch.rand(config.hidden) * self.limit)
        with torch.no_grad():
            bound = (3 / features) ** 0.5
            self.input.weight.uniform_(-bound, bound)
            self.input.bias.zero_()

    def initial_state(self, batch: int, device: torch.device) -> Tree:
        return (torch.zeros(batch, self.size, device=device),)

    def inputs(self, x: Tensor) -> Tensor:
        return at_least_float32(self.input(x))

    def row(self, x: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        excess = (self.u - self.u.clamp(-self.limit, self.limit)).detach()
        h = torch.relu(torch.addcmul(x, self.u - excess, state[0]))
        return h, (h,)
