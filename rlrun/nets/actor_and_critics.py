"""Actors and critics for bounded real actions: encoder, networks, batches of windows."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from rlrun.functional.returns import nstep_return
from rlrun.functional.rows import keep_rows, rows, shape_reward
from rlrun.nets.acting import ActingNet, ActionBounds, TorsoMemory, Trunk, burn_in
from rlrun.nets.noise import MEAN_WEIGHTS, ForwardNoise
from rlrun.nets.torso import FlatObs, make_activation, make_torso, mlp
from rlrun.schema import ControlConfig, MemoryConfig, TorsoConfig
from rlrun.types import Segment, Spec, Tree, tree_map

# -- networks --------------------------------------------------------------------------------------


class ObsEncoder(Trunk):
    """Features [*, F] of rows: the flat observation, or the output of torso and memory.

    Without a memory, the layers of an MLP torso belong to the heads, one set per critic. Images and
    memories are encoded once for all heads of a network. With ``prev_inputs`` the memory also reads
    the previous action (in [-1, 1], zeros in an episode's first row) and reward.
    """

    def __init__(
        self, policy: ControlConfig, torso: TorsoConfig, memory: MemoryConfig, spec: Spec
    ) -> None:
        mlp = memory.name == "none" and torso.name == "mlp"
        layers = FlatObs(spec.obs) if mlp else make_torso(torso, spec.obs)
        actions = math.prod(spec.action.shape or ())
        super().__init__(layers, memory, (actions + 1) * policy.prev_inputs)
        self.head_hidden = (*torso.hidden, *policy.head_hidden) if mlp else policy.head_hidden


class ActorNet(ActingNet):
    """Encoder and head with ``outputs`` numbers per action dimension.

    1: the action before tanh. 2: the mean before tanh and the log standard deviation. The buffers
    ``learned`` and ``noise`` are part of the weights, so that actors in any process get them.
    """

    learned: Tensor  # 0-d: 0 before the first update, then 1
    noise: Tensor  # 0-d: standard deviation of the exploration noise

    def __init__(
        self,
        policy: ControlConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        spec: Spec,
        outputs: int,
    ) -> None:
        super().__init__(spec.action)
        self.prev_inputs, self.bounds = policy.prev_inputs, ActionBounds(spec.action)
        self.encoder = ObsEncoder(policy, torso, memory, spec)
        sizes = [self.encoder.size, *self.encoder.head_hidden, outputs * self.bounds.size]
        self.head = mlp(sizes, torso.activation, last=False)
        self.register_buffer("learned", torch.zeros(()))
        self.register_buffer("noise", torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Return float32 [*, outputs A] of features [*, F]."""
        out: Tensor = self.head(features)
        return out.float()

    def acting_trunks(self) -> list[TorsoMemory]:
        return [(self.encoder.torso, self.encoder.memory)]

    def head_outputs(self, h: Tensor, noise: ForwardNoise = MEAN_WEIGHTS) -> Tensor:
        return self.forward(h)


class Critics(nn.Module):
    """Q_c(s, a) of ``count`` critics, whose layers are evaluated as batched products; with several
    ``outputs`` each, quantiles of it.

    Every critic has its own head. The encoder of images and memory is shared.
    """

    def __init__(
        self,
        policy: ControlConfig,
        torso: TorsoConfig,
        memory: MemoryConfig,
        spec: Spec,
        count: int,
        outputs: int = 1,
    ) -> None:
        super().__init__()
        self.count, actions = count, math.prod(spec.action.shape or ())
        self.encoder = ObsEncoder(policy, torso, memory, spec)
        assert self.encoder.head_hidden, "a head linear in the action; checked in rlrun.config"
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        sizes = [self.encoder.size + actions, *self.encoder.head_hidden, outputs]
        for n_in, n_out in pairwise(sizes):
            bound = n_in**-0.5  # the default of nn.Linear
            weight = torch.empty(count, n_in, n_out).uniform_(-bound, bound)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.empty(count, 1, n_out).uniform_(-bound, bound)))
        hidden = [make_activation(torso.activation) for _ in self.encoder.head_hidden]
        self.activations = nn.ModuleList(hidden)  # one per layer, so that each is measured

    def forward(
        self, features: Tensor, action: Tensor, count: int | None = None, *, frozen: bool = False
    ) -> Tensor:
        """Return float32 [C, L, B], or quantiles [C, L, B, N], for unit actions [L, B, A].

        ``count``: evaluate only the first critics; None: all. ``frozen``: gradients reach the
        inputs, not the parameters.
        """
        weights, biases = list(self.weights), list(self.biases)
        if count is not None and count < self.count:
            weights, biases = ([p[:count] for p in params] for params in (weights, biases))
        if frozen:
            weights, biases = ([p.detach() for p in params] for params in (weights, biases))
        x = torch.cat([features, action], -1).flatten(0, -2)
        x = x.expand(len(weights[0]), *x.shape)
        layers = zip(weights[:-1], biases[:-1], self.activations, strict=True)
        for i, (weight, bias, activation) in enumerate(layers):
            x = activation(torch.baddbmm(bias, self.layer_inputs(i, x, frozen=frozen), weight))
        x = self.layer_inputs(-1, x, frozen=frozen)
        lead = features.shape[:-1]
        if biases[-1].shape[-1] > 1:
            outputs: Tensor = torch.baddbmm(biases[-1], x, weights[-1])
            return outputs.reshape(len(outputs), *lead, -1).float()
        # A sum of products takes a tenth of the time of a product with a one-column matrix.
        q: Tensor = torch.linalg.vecdot(x, weights[-1].mT) + biases[-1].squeeze(-1)
        return q.reshape(-1, *lead).float()

    def layer_inputs(self, layer: int, x: Tensor, *, frozen: bool) -> Tensor:
        """Return what a layer reads, [C, N, F], of the outputs ``x`` of the one before."""
        return x


# -- inputs ----------------------------------------------------------------------------------------


class Batch:
    """Windows as losses read them: returns of the learned rows, inputs of the encoders.

    Rows are [L, B] (learned positions x windows).
    """

    def __init__(
        self,
        segment: Segment,
        weight: Tensor,
        net: ActorNet,
        config: ControlConfig,
        *,
        recurrent: bool,
    ) -> None:
        """``weight`` [B]: importance weights. ``recurrent``: whether the networks have a memory."""
        c, w = config, config.window
        bs, stop = w.burnin, w.burnin + w.learned
        reward = shape_reward(segment.reward[bs:], c.reward_scale, c.reward_clip)
        ends = (x[bs:] for x in (segment.terminated, segment.truncated, segment.valid))
        n = nstep_return(reward, *ends, nstep=c.nstep, gamma=c.gamma)
        self.window, self.weight, self.valid = w, weight, segment.valid[bs:stop]
        self.reward = n.reward[: w.learned]  # R_t, n-step
        self.discount = n.discount[: w.learned]  # gamma^k, 0 after a termination
        self.steps = n.steps[: w.learned]  # k
        assert net.bounds is not None
        unit = net.bounds.to_unit(segment.action)
        self.action = torch.where(self.valid.unsqueeze(-1), unit[bs:stop], 0.0)  # [L, B, A]
        self.state = segment.state if c.state_init == "stored" else None  # of the actor
        self.single = (bs, w.learned) == (0, 1) and not (recurrent or c.prev_inputs)
        self.column = torch.arange(len(weight), device=weight.device)
        if self.single:
            self.obs = tree_map(lambda x: keep_rows(self.valid[:1], x[:1]), segment.obs)
            alive = self.valid[0] & (self.discount[0] > 0)  # zeros after a termination

            def next_row(x: Tensor) -> Tensor:
                x = x[1] if w.nstep == 1 else x[self.steps[0], self.column]
                return keep_rows(alive, x).unsqueeze(0)

            self.next_obs = tree_map(next_row, segment.obs)
            return
        self.segment, self.inputs = segment, net.window_inputs(segment, c)
        learned = torch.arange(w.learned, device=weight.device).unsqueeze(-1)
        self.bootstrap_row = learned + self.steps

    def encode(self, encoder: ObsEncoder, state: Tree | None = None) -> Tensor:
        """Return features [L, B, F] of the learned rows.

        ``state`` [B, H]: before each window's first row after the filler; None: zeros.
        """
        return self.encode_from(encoder, self.warm_state(encoder, state))

    def encode_from(self, encoder: ObsEncoder, state: Tree) -> Tensor:
        """Return ``encode`` from ``state``, the result of ``warm_state``."""
        if self.single:
            features: Tensor = encoder.torso(self.obs)
            return features
        return self._unroll(encoder, state, self.window.learned)

    @torch.no_grad()
    def warm_state(self, encoder: ObsEncoder, state: Tree | None = None) -> Tree:
        """Return the state [B, H] after the burn-in from ``state``, without gradient."""
        if self.single:
            return ()
        bs, valid = self.window.burnin, self.segment.valid
        if state is None:
            state = encoder.memory.initial_state(valid.shape[1], valid.device)
        if not bs:
            return state
        x = self._inputs(encoder, 0, bs)
        return burn_in(encoder.memory, x, state, valid[:bs], self.segment.partial)

    def encode_next(self, encoder: ObsEncoder, state: Tree | None = None) -> Tensor:
        """Return features [L, B, F] of the rows from which targets bootstrap."""
        if self.single:
            features: Tensor = encoder.torso(self.next_obs)
            return features
        return self.encode_both(encoder, state)[1]

    def encode_both(self, encoder: ObsEncoder, state: Tree | None = None) -> tuple[Tensor, Tensor]:
        """Return ``encode`` and ``encode_next`` from a single unroll."""
        if self.single:
            return self.encode(encoder), self.encode_next(encoder)
        state = self.warm_state(encoder, state)
        out = self._unroll(encoder, state, self.window.learned + self.window.nstep)
        return out[: self.window.learned], out[self.bootstrap_row, self.column]

    def _unroll(self, encoder: ObsEncoder, state: Tree, count: int) -> Tensor:
        """Return features [count, B, F] from the state after the burn-in."""
        bs = self.window.burnin
        out: Tensor = encoder.memory.unroll(self._inputs(encoder, bs, bs + count), state)[0]
        return out

    def _inputs(self, encoder: ObsEncoder, start: int, stop: int) -> Tensor:
        return encoder.inputs(*rows(self.inputs, start, stop))
