"""Interface of samplers over slots 0..capacity-1, some of which hold a live window."""

from typing import Any, Protocol

import numpy as np

from rlrun.buffer.samplers.priority import finite_priorities

PROBES = 1024


class WindowIndex(Protocol):
    """The stored windows, as far as uniform sampling reads them."""

    @property
    def num_candidates(self) -> int:
        """Number of candidates; most hold a live window."""

    def candidates(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(slots, whether each holds a live window) of candidates 0..num_candidates-1."""


class Sampler(Protocol):
    """Draws slots of live windows; in host memory on numpy arrays, on a device on tensors."""

    def replace_slots(self, dead: np.ndarray, new: np.ndarray) -> None:
        """Remove live slots ``dead`` (they are never drawn again) and insert ``new`` ones.

        A slot in both is new.
        """

    def set_live(self, live: np.ndarray) -> None:
        """Set the live slots after a state was loaded."""

    def draw(self, index: Any, batch: int, env_steps: int) -> tuple[Any, Any]:
        """(slots int64 [batch], importance weights float32 [batch])."""

    def update(self, slots: Any, priority: Any) -> None:
        """Set |delta| (float [n]) of live slots (int64 [n]); of duplicates the last wins."""

    def update_found(self, slots: Any, priority: Any, alive: Any) -> int:
        """``update`` where ``alive``; returns the number of the others, if it is known already."""

    def synchronize(self) -> int:
        """Late priorities not counted yet. Raises: NumericError for bad priorities."""

    def priorities(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """(|delta| float [n], mass in proportion to the probability float64 [n]) of live slots.

        None: all are equally probable. Changes nothing.
        """

    def metrics(self, env_steps: int) -> dict[str, float]:
        """buffer/ metrics of the priorities."""

    def probe(self, index: WindowIndex) -> tuple[np.ndarray, np.ndarray | None]:
        """Return (live slots int64 [n], N P(slot) float64 [n]; None: all are equally likely).

        The slots at ``probe_quantiles`` of the sampling distribution: metrics of what is sampled
        are then a function of the stored windows, need no random numbers and change nothing.
        """

    def check(self, live: np.ndarray) -> str | None:
        """None, or the broken invariant; ``live``: the slots of the stored windows."""

    def arrays(self) -> list[Any]:
        """Every array owned."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def probe_quantiles() -> np.ndarray:
    """Offsets in [0, 1) in each of PROBES equal ranges, float64 [PROBES]; always the same."""
    return _OFFSETS.copy()


_OFFSETS = np.random.default_rng(0).random(PROBES)


def uniform_probe(index: WindowIndex) -> tuple[np.ndarray, None]:
    """``Sampler.probe`` of uniform sampling."""
    count = index.num_candidates
    number = (np.arange(PROBES) + _OFFSETS) * (count / PROBES)
    slots, live = index.candidates(np.minimum(number.astype(np.int64), count - 1))
    return slots[live], None


def probe_metrics(probability: np.ndarray | None, beta: float | None) -> dict[str, float]:
    """buffer/ metrics of N P(i) [n] at the quantiles of P over N windows; none where uniform.

    priority_ess   1 / (N sum_i P(i)^2) = 1 / E_P[N P(i)], Kish's effective sample size over N
    weight_spread  standard deviation over mean of the importance weights (N P(i))^-beta

    Source: Kish 1965, Survey Sampling, section 11.7; Schaul et al. 2016, section 3.4.
    """
    if probability is None or beta is None or not len(probability):
        return {}
    weight = probability**-beta
    return {
        "buffer/priority_ess": min(1.0, 1.0 / float(probability.mean())),
        "buffer/weight_spread": float(weight.std() / weight.mean()),
    }


class HostSampler:
    """Defaults of samplers in host memory."""

    def set_live(self, live: np.ndarray) -> None:
        """Nothing: the loaded state has the live slots."""

    def update(self, slots: np.ndarray, priority: np.ndarray) -> None:
        raise NotImplementedError

    def update_found(self, slots: np.ndarray, priority: np.ndarray, alive: np.ndarray) -> int:
        if alive.all():
            self.update(slots, priority)
            return 0
        finite_priorities(priority)
        self.update(slots[alive], priority[alive])
        return int((~alive).sum())

    def priorities(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None

    def synchronize(self) -> int:
        """0: late priorities are counted, and bad ones raised, by ``update_found``."""
        return 0
