"""Memorax (compiled JAX): PQN with a GRU on CartPole-v1, in its own environment.

usage: python memorax_runs.py pqn_gru FIRST_SEED SEEDS ENV_STEPS

Nothing of Memorax is changed. Prints one JSON line; compilation, training and one evaluation of the
final weights are parts of the process. ``evaluate`` makes as many steps as an episode can have in
each of 50 environments. The score is the mean return of their first episodes.
"""

import sys
from importlib.metadata import version

import jax
import optax
from common import EPISODES, RecurrentPQN, say
from flax import linen as nn
from memorax.algorithms import PQN, PQNConfig
from memorax.environments import make
from memorax.networks import MLP, RNN, FeatureExtractor, Network, heads
from memorax.utils.wrappers import GymnaxWrapper, ScaleRewardWrapper

S = RecurrentPQN


class OneEnd(GymnaxWrapper):
    """An environment of gymnax 1 whose ``step`` returns one ``done``, as Memorax reads it."""

    def step(self, key, state, action, params):
        obs, state, reward, terminated, truncated, _ = self._env.step(key, state, action, params)
        return obs, state, reward, terminated | truncated, {}


def make_agent(env, env_params, env_steps: int) -> PQN:
    config = PQNConfig(
        name="pqn_gru", num_envs=S.ENVS, num_eval_envs=EPISODES, num_steps=S.STEPS, gamma=S.GAMMA,
        td_lambda=S.LAMBDA, num_minibatches=S.MINIBATCHES, update_epochs=S.EPOCHS,
    )  # fmt: skip
    network = Network(
        FeatureExtractor(MLP(S.HIDDEN, normalizer=nn.LayerNorm)),
        RNN(nn.GRUCell(S.HIDDEN)),
        heads.DiscreteQNetwork(env.num_actions),
    )
    updates = env_steps // (S.ENVS * S.STEPS) * S.EPOCHS * S.MINIBATCHES
    lr = optax.linear_schedule(S.LR, 0.0, updates)
    optimizer = optax.chain(optax.clip_by_global_norm(S.CLIP), optax.radam(lr))
    epsilon = optax.linear_schedule(1.0, S.EPS_END, int(S.EPS_SHARE * env_steps))
    return PQN(config, env, env_params, network, optimizer, epsilon)


def main() -> None:
    first, seeds, env_steps = map(int, sys.argv[2:])
    env, env_params = make("gymnax::CartPole-v1")
    env = ScaleRewardWrapper(OneEnd(env), S.REWARD_SCALE)
    agent = make_agent(env, env_params, env_steps)

    @jax.jit
    def train(seed):
        key, state = agent.init(jax.random.key(seed))
        key, state, _ = agent.train(key, state, env_steps)
        _, rows = agent.evaluate(key, state, env_params.max_steps_in_episode)
        in_first = rows.done.cumsum(0) - rows.done == 0  # [steps, EPISODES]
        return state.step, (rows.reward * in_first).sum(0).mean() / S.REWARD_SCALE

    steps, scores = zip(*(train(seed) for seed in range(first, first + seeds)), strict=True)
    say({
        "scores": [float(score) for score in scores], "env_steps": int(max(steps)),
        "version": version("memorax"),
    })  # fmt: skip


if __name__ == "__main__":
    main()
