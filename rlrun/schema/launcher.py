"""The launcher of sweeps on Ray."""

import math
from dataclasses import dataclass, field
from typing import Any

from rlrun.schema.ranges import Ranged, at_least, positive, require


@dataclass(frozen=True)
class RayLauncherConfig(Ranged):
    """Keys of ``hydra/launcher=ray``: where jobs run, and what each reserves."""

    address: str | None
    num_cpus: float = field(metadata=positive())
    num_gpus: float = field(metadata=at_least(0))
    resources: dict[str, Any]
    retries: int = field(metadata=at_least(0))

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, amount in self.resources.items():
            ok = type(amount) in (int, float) and 0 < amount < math.inf
            text = "is no amount of a resource; a number > 0 is allowed"
            require(ok, f"resources.{name}", amount, text)
            require(
                name not in ("CPU", "GPU", "memory"),
                f"resources.{name}",
                amount,
                "is no custom resource; names of your own are allowed; use num_cpus or num_gpus",
            )

    @property
    def threads(self) -> int:
        """The cores that a job counts as its own."""
        return max(1, int(self.num_cpus))

    @property
    def reserved(self) -> dict[str, float]:
        """What a job reserves, by Ray's names."""
        return {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
