"""Peers whose replay is made of torch tensors."""

import numpy as np
from replay_arrays import ADD, ALPHA, BETA, EPISODE, SEQUENCE, Peer, block


class Torchrl(Peer):
    package = "torchrl"

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__(kind, rows)
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, PrioritizedReplayBuffer

        torch.set_num_threads(1)
        self.torch, self.dict = torch, TensorDict
        storage = LazyTensorStorage(rows)
        self.buffer = PrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=storage)

    def native(self, data: dict):
        tensors = {k: self.torch.from_numpy(np.array(v)) for k, v in data.items()}
        return self.dict(tensors, [len(data["done"])])

    def put(self, data) -> None:
        self.buffer.extend(data)

    def fill(self) -> None:
        super().fill()
        for start in range(0, self.rows, 4096):
            index = self.torch.arange(start, min(start + 4096, self.rows))
            self.buffer.update_priority(index, self.fresh(len(index)))

    def fresh(self, count: int):
        return self.torch.rand(count) + 1e-3

    def sample(self, batch: int):
        return self.buffer.sample(batch, return_info=True)

    def prioritize(self, drawn, priority) -> None:
        self.buffer.update_priority(drawn[1]["index"], priority)


class TorchrlSlices(Torchrl):
    """PrioritizedSliceSampler over rows: a priority for every row, slices of 45."""

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__(kind, rows)
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
        from torchrl.data.replay_buffers.samplers import PrioritizedSliceSampler

        sampler = PrioritizedSliceSampler(
            rows, ALPHA, BETA, slice_len=SEQUENCE, traj_key="trajectory", cache_values=True
        )
        self.buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(rows), sampler=sampler, batch_size=64 * SEQUENCE
        )

    def prepare(self) -> None:
        """Nothing is added later."""

    def fill(self) -> None:
        data = block(self.kind, self.rows)
        done = data["done"][:, None]
        flags = {"done": done, "terminated": done, "truncated": np.zeros_like(done)}
        after = {"obs": data["next_obs"], "reward": data["reward"][:, None], **flags}
        now = {"obs": data["obs"], "action": data["action"]}
        now["trajectory"] = np.arange(self.rows) // EPISODE
        tensors = {k: self.torch.from_numpy(v) for k, v in now.items()}
        nested = {k: self.torch.from_numpy(v) for k, v in after.items()}
        tensors["next"] = self.dict(nested, [self.rows])
        self.buffer.extend(self.dict(tensors, [self.rows]))
        index = self.torch.arange(self.rows)
        self.buffer.update_priority(index, self.fresh(self.rows))

    def count(self, batch: int) -> int:
        return batch * SEQUENCE

    def sample(self, batch: int):
        return self.buffer.sample(batch * SEQUENCE)

    def prioritize(self, drawn, priority) -> None:
        self.buffer.update_priority(drawn["index"], priority)


class DiEngine(Peer):
    """AdvancedReplayBuffer: a list of dicts of tensors; sequences are dicts of lists."""

    package = "di-engine"

    def __init__(self, kind: str, rows: int) -> None:
        super().__init__(kind, rows)
        import torch
        from ding.utils.data import timestep_collate
        from ding.worker.replay_buffer.advanced_buffer import AdvancedReplayBuffer

        torch.set_num_threads(1)
        self.torch, self.collate = torch, timestep_collate
        self.items = rows // SEQUENCE if kind == "sequences" else rows
        config = AdvancedReplayBuffer.default_config()
        config.replay_buffer_size, config.alpha, config.beta = self.items, ALPHA, BETA
        self.buffer = AdvancedReplayBuffer(config, tb_logger=None, exp_name="replay")

    def native(self, data: dict) -> list:
        columns = {k: self.torch.from_numpy(np.array(v)) for k, v in data.items()}
        columns = {k: [x.clone() for x in v.unbind(0)] for k, v in columns.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def put(self, data: list) -> None:
        self.buffer.push([dict(x) for x in data], 0)  # the buffer writes into its items

    def fill(self) -> None:
        for _ in range(-(-self.items // ADD)):
            if self.kind == "sequences":
                data = [self.sequence() for _ in range(ADD)]
            else:
                data = self.native(block(self.kind, ADD))
            for item, priority in zip(data, self.fresh(ADD), strict=True):
                item["priority"] = priority
            self.put(data)

    def sequence(self) -> dict:
        """45 rows as DI-engine's collector hands a sequence on."""
        rows = self.native(block(self.kind, SEQUENCE))
        out = {name: [row[name] for row in rows] for name in ("obs", "action", "reward")}
        state = {"h": self.torch.zeros(1, 1, 1), "c": self.torch.zeros(1, 1, 1)}
        return out | {"done": [False] * SEQUENCE, "prev_state": [state] * SEQUENCE}

    def prepare(self) -> None:
        if self.kind != "sequences":
            super().prepare()

    def fresh(self, count: int) -> list:
        return super().fresh(count).tolist()

    def sample(self, batch: int):
        drawn = self.buffer.sample(batch, 0)
        if self.kind == "sequences":
            self.collate(drawn)
        return drawn

    def prioritize(self, drawn, priority) -> None:
        ids = [x["replay_unique_id"] for x in drawn]
        index = [x["replay_buffer_idx"] for x in drawn]
        new = {"replay_unique_id": ids, "replay_buffer_idx": index, "priority": priority}
        self.buffer.update(new)
