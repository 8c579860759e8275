"""Running mean and variance, as buffers: they travel with the weights to actors and evaluators."""

import torch
from torch import Tensor, nn

CLIP = 10.0  # standard deviations; OpenAI Baselines' VecNormalize
EPS = 1e-8  # added to the variance; OpenAI Baselines' VecNormalize


class RunningMoments(nn.Module):
    """Mean and variance [*S] of all values added, in float64; 0 and 1 before the first."""

    count: Tensor
    mean: Tensor
    square: Tensor  # the sum of squared deviations from the mean

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        for name, size in (("count", ()), ("mean", shape), ("square", shape)):
            self.register_buffer(name, torch.zeros(size, dtype=torch.float64))

    @torch.no_grad()
    def add(self, x: Tensor) -> None:
        """Add N >= 1 values, x [N, *S]. Source: Chan, Golub & LeVeque 1979, eq. 2.1."""
        x = x.double()
        mean, count = x.mean(0), len(x)
        total, shift = self.count + count, mean - self.mean
        deviations = (x - mean).square().sum(0) + shift.square() * (self.count * count / total)
        self.square += deviations
        self.mean += shift * (count / total)
        self.count.copy_(total)

    def scale(self) -> Tensor:
        """Return float32 [*S]: 1 / sqrt(variance + EPS); 1 before the first value."""
        return self.inverse_std().float()

    def inverse_std(self) -> Tensor:
        """Return float64 [*S]: ``scale`` before rounding."""
        variance = torch.where(self.count > 0, self.square / self.count.clamp(min=1), 1.0)
        return (variance + EPS).rsqrt()

    def forward(self, x: Tensor) -> Tensor:
        """Return (x - mean) / std as float32, clipped to [-CLIP, CLIP]; x [*, *S].

        float32 would lose the digits in which a clock or a coordinate differs from its mean.
        """
        return ((x.double() - self.mean) * self.inverse_std()).clamp(-CLIP, CLIP).float()
