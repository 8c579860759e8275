"""Running mean and variance, part of the weights: who acts and who evaluates sees them too."""

import torch
from torch import Tensor, nn

CLIP = 10.0  # standard deviations; OpenAI Baselines' VecNormalize
EPS = 1e-8  # added to the variance; likewise


class RunningMoments(nn.Module):
    """Mean and variance [*S] of everything added, in float64; before that 0 and 1."""

    count: Tensor
    mean: Tensor
    square: Tensor  # the sum of squared deviations from the mean

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        for name, size in (("count", ()), ("mean", shape), ("square", shape)):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))

    @torch.no_grad()
    def add(self, x: Tensor) -> None:
        """Take in N >= 1 values, x [N, *S]. Source: Chan, Golub & LeVeque 1979, eq. 2.1."""
        x = x.double()
        mean, count = x.mean(0), len(x)
        total, shift = self.count + count, mean - self.mean
        joint = (x - mean).square().sum(0) + shift.square() * (self.count * count / total)
        self.square += joint
        self.mean += shift * (count / total)
        self.count.copy_(total)

    def scale(self) -> Tensor:
        """float32 [*S]: 1 / sqrt(variance + EPS), 1 before anything was added."""
        variance = torch.where(self.count > 0, self.square / self.count.clamp(min=1), 1.0)
        return (variance + EPS).rsqrt().float()

    def forward(self, x: Tensor) -> Tensor:
        """(x - mean) / std in float32, within [-CLIP, CLIP]; x [*, *S]."""
        return ((x.float() - self.mean.float()) * self.scale()).clamp(-CLIP, CLIP)
