"""rejax (compiled JAX) on CartPole-v1 and Pendulum-v1, in its own environment (gymnax < 1).

usage: python rejax_runs.py ppo|pqn|dqn|sac FIRST_SEED SEEDS ENV_STEPS

Several seeds are one vmap. Nothing of rejax is changed. Prints one JSON line; compilation, training
and one evaluation of the final weights (50 episodes) are parts of the process.
"""

import sys
from importlib.metadata import version

import jax
from common import EPISODES, PPO, PQN, say
from flax import linen as nn
from rejax import get_algo
from rejax.evaluate import evaluate
from rejax.networks import DiscreteQNetwork, EpsilonGreedyPolicy

WIDE = (256, 256)
SETTINGS = {
    "ppo": {
        "agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        "num_envs": PPO.ENVS, "num_steps": PPO.STEPS, "num_epochs": PPO.EPOCHS,
        "num_minibatches": 1, "learning_rate": PPO.LR, "max_grad_norm": PPO.NORM,
        "gamma": PPO.GAMMA, "gae_lambda": PPO.LAMBDA, "clip_eps": PPO.CLIP, "vf_coef": PPO.VALUE,
        "ent_coef": PPO.ENTROPY,
    },
    "pqn": {
        "num_envs": PQN.ENVS, "num_steps": PQN.STEPS, "num_epochs": PQN.EPOCHS,
        "num_minibatches": PQN.MINIBATCHES, "learning_rate": PQN.LR, "max_grad_norm": PQN.CLIP,
        "gamma": PQN.GAMMA, "td_lambda": PQN.LAMBDA, "eps_start": 1.0,
        "eps_end": PQN.EPS_END, "exploration_fraction": PQN.EPS_SHARE,
    },
    "dqn": {  # an update per env step; conf/policy/dqn.yaml
        "num_envs": 1, "num_epochs": 1, "batch_size": 64, "fill_buffer": 1000,
        "learning_rate": 1e-3, "gamma": 0.99, "max_grad_norm": 10.0, "polyak": 0.98,
    },
    "sac": {
        "num_envs": 1, "num_epochs": 1, "batch_size": 256, "fill_buffer": 1000,
        "learning_rate": 1e-3, "gamma": 0.95, "polyak": 0.995, "hidden_layer_sizes": WIDE,
    },
}  # fmt: skip


def main() -> None:
    name, (first, seeds, env_steps) = sys.argv[1], map(int, sys.argv[2:])
    algo = get_algo(name)
    made = algo.create(
        env="Pendulum-v1" if name == "sac" else "CartPole-v1",
        total_timesteps=env_steps, eval_freq=env_steps, skip_initial_evaluation=True,
        **SETTINGS[name],
    )  # fmt: skip

    if name == "dqn":  # its own argument cannot change the widths
        net = EpsilonGreedyPolicy(DiscreteQNetwork)
        made = made.replace(agent=net(WIDE, activation=nn.relu, action_dim=2))

    def score(agent, state, key):
        return evaluate(agent.make_act(state), key, agent.env, agent.env_params, EPISODES)[1].mean()

    made = made.replace(eval_callback=score)

    def train(seed):
        state, scores = algo.train(made, rng=jax.random.PRNGKey(seed))
        return state.global_step, scores[-1]

    if seeds == 1:
        steps, scores = jax.jit(train)(first)
    else:
        steps, scores = jax.jit(jax.vmap(train))(jax.numpy.arange(first, first + seeds))
    say({
        "scores": scores.reshape(-1).tolist(), "env_steps": int(steps.max()),
        "version": version("rejax"),
    })  # fmt: skip


if __name__ == "__main__":
    main()
