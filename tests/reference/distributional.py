"""Distributional losses one number at a time, straight from the papers."""

import math


def project(values, probabilities, atoms):
    """Bellemare et al. 2017, algorithm 1, with its on-atom case mended: a list [M]."""
    low, high, step = atoms[0], atoms[-1], atoms[1] - atoms[0]
    out = [0.0] * len(atoms)
    for value, p in zip(values, probabilities, strict=True):
        value = min(max(value, low), high)
        for i, atom in enumerate(atoms):
            out[i] += p * max(0.0, 1 - abs(value - atom) / step)
    return out


def quantile_loss(theta, target, tau, kappa):
    """Dabney et al. 2018a, eq. 10; ``theta`` may be tensors that record gradients."""
    total = 0.0
    for i in range(len(theta)):
        for other in target:
            u = other - theta[i]
            size = abs(u)
            if kappa == 0:
                huber = size
            elif size <= kappa:
                huber = 0.5 * u * u / kappa
            else:
                huber = size - 0.5 * kappa
            total = total + abs(tau[i] - (1.0 if u < 0 else 0.0)) * huber / len(target)
    return total


def softmax(q, temperature, mask=None):
    """Probabilities of a list of values; 0 where the mask says no."""
    mask = mask or [True] * len(q)
    best = max(x for x, m in zip(q, mask, strict=True) if m)
    e = [math.exp((x - best) / temperature) if m else 0.0 for x, m in zip(q, mask, strict=True)]
    return [x / sum(e) for x in e]
