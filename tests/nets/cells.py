"""One small config of every recurrent memory."""

import math

import torch

from rlrun.nets.memory import make_memory
from rlrun.schema import (
    BMRUConfig,
    FFMConfig,
    GatedDeltaNetConfig,
    GTrXLConfig,
    IndRNNConfig,
    LMUConfig,
    LRUConfig,
    Mamba2Config,
    MemoryConfig,
    MinGRUConfig,
    MLSTMConfig,
    RTUConfig,
    SLSTMConfig,
)

RING = {"r_min": 0.4, "r_max": 0.99, "max_phase": 2 * math.pi}
DECAYS = {"heads": 2, "dt_min": 0.05, "dt_max": 0.5}
CONFIGS = {
    "lstm": MemoryConfig("lstm", 6, 1.0),
    "gru": MemoryConfig("gru", 6, 0.0),
    "mingru": MinGRUConfig("mingru", 6, 4.0, readout=True),
    "mingru_sums": MinGRUConfig("mingru", 6, 4.0, readout=False),
    "lru": LRUConfig("lru", 6, 0.0, **RING, readout=True),
    "lru_sums": LRUConfig("lru", 6, 0.0, **RING, readout=False),
    "ffm": FFMConfig("ffm", 6, 0.0, traces=5, context=3, horizon=20.0),
    "rtu": RTUConfig("rtu", 6, 0.0, **RING, recurrence="linear", activation="relu"),
    "rtu_nonlinear": RTUConfig("rtu", 6, 0.0, **RING, recurrence="nonlinear", activation="tanh"),
    "lmu": LMUConfig("lmu", 6, 0.0, order=5, channels=2, theta=8.0),
    "gtrxl": GTrXLConfig("gtrxl", 6, 0.0, window=4, layers=2, heads=2, mlp=7, gate_bias=2.0),
    "indrnn": IndRNNConfig("indrnn", 6, 0.0, horizon=12.0),
    "bmru": BMRUConfig("bmru", 6, 0.0, threshold=1.0, readout=True),
    "bmru_bits": BMRUConfig("bmru", 6, 0.0, threshold=1.0, readout=False),
    "mlstm": MLSTMConfig("mlstm", 6, 6.0, heads=2, readout=True),
    "mlstm_sums": MLSTMConfig("mlstm", 6, 6.0, heads=2, readout=False),
    "slstm": SLSTMConfig("slstm", 6, 4.0, heads=2),
    "gated_deltanet": GatedDeltaNetConfig("gated_deltanet", 6, 0.0, readout=True, **DECAYS),
    "gated_deltanet_sums": GatedDeltaNetConfig("gated_deltanet", 6, 0.0, readout=False, **DECAYS),
    "mamba2": Mamba2Config("mamba2", 6, 0.0, state_size=3, readout=True, **DECAYS),
    "mamba2_sums": Mamba2Config("mamba2", 6, 0.0, state_size=3, readout=False, **DECAYS),
}


FEATURES = 5
CPU = torch.device("cpu")


def make(name, dtype=torch.float32, features=FEATURES):
    torch.manual_seed(0)
    return make_memory(CONFIGS[name], features).to(dtype)


def stepped(memory, x, state, first=None):
    """Outputs and last state of ``step`` row by row, with zeros before ``first`` rows."""
    out = []
    for t, row in enumerate(x):
        if first is not None:
            state = tuple(torch.where(first[t][:, None], 0, s) for s in state)
        y, state = memory.step(row, state)
        out.append(y)
    return torch.stack(out), state


def state_of(memory, rows, batch, dtype=torch.float32):
    """A state that the memory can be in: that after ``rows`` random rows."""
    zero = tuple(s.to(dtype) for s in memory.initial_state(batch, CPU))
    with torch.no_grad():
        return stepped(memory, torch.randn(rows, batch, FEATURES, dtype=dtype), zero)[1]
