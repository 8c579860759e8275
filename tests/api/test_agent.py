"""An agent acts as evaluations do, in any loop that a user writes."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import rlrun
from rlrun.cli.main import main
from rlrun.env import make_env
from rlrun.pipeline.evaluate import Evaluator
from rlrun.run.agent import load_trained, read_obs
from tests.policy.make import nets

EPISODES = 3


def play(agent, env, n, seed, **given):
    """Returns [n] of the first episode of each environment; autoreset is NEXT_STEP."""
    obs, _ = env.reset(seed=seed)
    agent.reset(n)
    total, over = np.zeros(n), np.zeros(n, bool)
    reward, first, done = None, None, np.zeros(n, bool)
    while not over.all():
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs, reward, first, **given))
        total += np.where(over, 0.0, reward)
        first, done = done, terminated | truncated
        over |= done
    env.close()
    return total


@pytest.mark.parametrize("name", ["r2d2", "dqn", "ppo", "sac"])
def test_acting_is_that_of_evaluations(trained, name, capsys):
    """LSTM, stacked frames, GRU with normalised observations, actions of a Box."""
    run = trained(name)
    agent = rlrun.load(run)
    returns = play(agent, agent.env(EPISODES), EPISODES, agent.eval_seed)
    found = load_trained(run.directory)
    evaluator = Evaluator(
        found.plan.config.env, episodes=EPISODES, seed=agent.eval_seed, max_steps=1000
    )
    assert returns.tolist() == evaluator.run(found.policy, env_steps=0).returns.tolist()
    evaluator.close()
    if name == "r2d2":
        capsys.readouterr()
        assert main(["eval", str(run.directory), "--episodes", str(EPISODES)]) == 0
        assert f"return_mean    {returns.mean():g}\n" in capsys.readouterr().out


def test_a_loop_over_one_environment(trained):
    """Single observations, a gymnasium.Env; the same episode as in a vector of one."""
    agent = rlrun.load(trained("sac"), "best")
    expected = play(agent, agent.env(1), 1, 5)
    env, total, done = agent.env(), 0.0, False
    assert isinstance(env, gym.Env)
    obs, _ = env.reset(seed=5)
    agent.reset()
    while not done:
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
        total, done = total + float(np.float32(reward)), terminated or truncated
    assert total == pytest.approx(expected[0], rel=1e-12)


def observations(agent, steps, n):
    shape = (steps, n, *agent.observation_space.shape)
    return np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32)


@pytest.mark.parametrize("name", ["r2d2", "dqn"])
def test_q_values_advance_nothing(trained, name):
    """Neither the state nor, while exploring, a random number."""
    one, other = rlrun.load(trained(name)), rlrun.load(trained(name))
    for agent in (one, other):
        agent.reset(2, seed=3)
    for t, obs in enumerate(observations(one, 6, 2)):
        reward = np.full(2, t, np.float32)
        q = one.q_values(obs, reward)
        assert (q == one.q_values(obs, reward)).all()
        explore = 0.5 if t % 2 else 0.0
        action = one.act(obs, reward, explore=explore)
        assert (action == other.act(obs, reward, explore=explore)).all()
        assert explore or (action == q.argmax(-1)).all()


@pytest.mark.parametrize("name", ["r2d2", "dqn"])
def test_first_opens_an_episode(trained, name):
    """Where ``first`` is set nothing of before is left, elsewhere all of it; SAME_STEP's loop."""
    used, fresh = rlrun.load(trained(name)), rlrun.load(trained(name))
    *before, last = observations(used, 5, 2)
    for obs in before:
        used.act(obs, np.ones(2, np.float32))
    q = used.q_values(last, np.ones(2, np.float32), first=np.array([True, False]))
    new = fresh.q_values(last)
    np.testing.assert_array_equal(q[0], new[0])
    assert (q[1] != new[1]).any()
    used.reset(2)
    np.testing.assert_array_equal(used.q_values(last), new)


def test_q_values_are_returns(trained):
    """The rescaling of values is undone: h(q) is what the network puts out."""
    agent = rlrun.load(trained("dqn"))
    (obs,) = observations(agent, 1, 1)
    found = load_trained(trained("dqn").directory)
    eps = found.plan.config.policy.value_rescale_eps
    with torch.no_grad():
        frames = torch.from_numpy(np.repeat(obs[:, None], 3, 1))
        net = nets(found.policy).net
        expected = net.head_outputs(net.torso(frames)).numpy()
    q = agent.q_values(obs).astype(np.float64)
    rescaled = np.sign(q) * (np.sqrt(np.abs(q) + 1) - 1) + eps * q
    np.testing.assert_allclose(rescaled, expected, rtol=1e-4, atol=1e-5)


def test_rewards_that_a_network_reads_are_asked_for(trained):
    agent = rlrun.load(trained("r2d2"))
    first, second = observations(agent, 2, 1)
    agent.act(first)  # none has been yet
    with pytest.warns(UserWarning, match="policy=r2d2 .*reward"):
        agent.act(second)
    agent.act(second)  # warned of once; warnings are errors here
    agent = rlrun.load(trained("dqn"))
    agent.act(first)
    agent.act(second)


def test_exploration(trained):
    agent = rlrun.load(trained("dqn"))
    (obs,) = observations(agent, 1, 64)
    agent.reset(64, seed=1)
    greedy, random = agent.act(obs), agent.act(obs, explore=1.0)
    assert 0 < (greedy != random).mean() < 1
    agent.reset(64, seed=1)
    assert (agent.act(obs, explore=1.0) == agent.act(obs, explore=1.0)).mean() < 1
    agent.reset(64, seed=1)
    agent.act(obs)
    assert (agent.act(obs, explore=1.0) == random).all()
    with pytest.raises(rlrun.ConfigError, match="explore = True: policy=dqn "):
        agent.act(obs, explore=True)
    with pytest.raises(rlrun.ConfigError, match="explore = 2: "):
        agent.act(obs, explore=2)
    sac = rlrun.load(trained("sac"))
    (obs,) = observations(sac, 1, 512)
    sac.reset(512, seed=1)
    sampled = sac.act(obs, explore=np.True_)
    mode = sac.act(obs)
    assert 0 < np.abs(sampled - mode).mean() < 1.9, "as the policy collects, not uniform"
    assert (sac.act(obs) == sac.act(obs, explore=np.False_)).all()
    with pytest.raises(rlrun.ConfigError, match="policy=sac "):
        sac.act(obs, explore=0.5)


WRONG = {
    "obs: .*float32 \\[3\\].*float32 \\[4\\]":
        lambda agent: agent.act(np.zeros(3, np.float32)),
    "obs: ": lambda agent: agent.act([[1.0], [1.0, 2.0]]),
    "obs: .*finite": lambda agent: agent.act([np.nan] * 4),
    "obs: .*2 env.*1": lambda agent: agent.act(np.zeros((2, 4))),
    "reward: .*float64 \\[2\\]": lambda agent: agent.act(np.zeros(4), [0.0, 1.0]),
    "first: .*int64.*bool \\[1\\]": lambda agent: agent.act(np.zeros(4), 0.0, 1),
    "n = 0: ": lambda agent: agent.reset(0),
}  # fmt: skip


def test_wrong_arguments_are_one_line(trained):
    agent = rlrun.load(trained("r2d2"))
    agent.reset()
    for text, wrong in WRONG.items():
        with pytest.raises(rlrun.ConfigError, match=text) as error:
            wrong(agent)
        assert "\n" not in str(error.value)
    with pytest.raises(rlrun.ConfigError, match="policy=sac "):
        rlrun.load(trained("sac")).q_values(np.zeros(3, np.float32))
    with pytest.raises(rlrun.ConfigError, match="seed = -1: "):
        agent.env(2).reset(seed=-1)
    for function in (rlrun.resume, rlrun.verify, lambda x: rlrun.diff(x, x)):
        with pytest.raises(rlrun.ConfigError, match="run_dir = None: "):
            function(None)
    with pytest.raises(rlrun.ConfigError, match="run_dir = 3: "):
        rlrun.load(3)
    for wrong in (lambda: rlrun.report(3), lambda: rlrun.train("env=chain", config_dir=3)):
        with pytest.raises(rlrun.ConfigError, match="_dir = 3: "):
            wrong()
    with pytest.raises(rlrun.ConfigError, match="trust = 3: "):
        rlrun.train("env=chain", trust=3)
    for function in (rlrun.sweep, rlrun.search):
        with pytest.raises(rlrun.ConfigError, match=r"3 .*\(\["):
            function(3)
    with pytest.raises(TypeError, match="weight"):
        rlrun.load(trained("r2d2"), weight="best")


SPACE = gym.spaces.Dict(
    {
        "image": gym.spaces.Box(0, 255, (2, 2), np.uint8),
        "pair": gym.spaces.Tuple((gym.spaces.Discrete(3, start=1), gym.spaces.MultiBinary(2))),
    }
)


def test_observations_of_every_space_are_read():
    image, bits = np.ones((2, 2), np.uint8), [0, 1]
    tree, n = read_obs(SPACE, {"image": image, "pair": (3, bits)})
    assert n == 0
    assert (tree["image"].shape, tree["pair"][0].shape) == ((1, 2, 2), (1,))
    assert tree["pair"][1].dtype == np.int8
    both, n = read_obs(SPACE, {"image": np.stack([image] * 2), "pair": ([1, 2], [bits] * 2)})
    assert (n, both["pair"][0].tolist()) == (2, [1, 2])
    for wrong, text in [
        ({"image": image}, r"obs .*\['image'\]; .*'pair'"),
        ({"image": image, "pair": [1]}, r"obs\['pair'\] .*1 .* tuple .*2"),
        ({"image": image, "pair": (0, bits)}, r"obs\['pair'\]\[0\]: .*0\]?; "),
        ({"image": image * 1.0, "pair": (1, bits)}, r"obs\['image'\]: .*float64 \[2, 2\]; uint8"),
        ({"image": image, "pair": ([1], [bits])}, "obs: "),
    ]:
        with pytest.raises(rlrun.ConfigError, match=text):
            read_obs(SPACE, wrong)


def test_actions_count_from_the_start_of_their_space(trained):
    """Policies number actions from 0; what ``act`` returns is of the space.

    Private: no preset has such a space.
    """
    agent = rlrun.load(trained("dqn"))
    (obs,) = observations(agent, 1, 5)
    expected = agent.act(obs) + 3
    agent.reset(5)
    agent._start = np.asarray(3)
    assert (agent.act(obs) == expected).all()


@pytest.mark.parametrize(
    ("overrides", "columns"),
    [(("policy=qmix", "env=twostep"), 1),
     (("policy=dqn", "env=twostep", "explore=anneal", "agents=separate"), 2)],
)  # fmt: skip
def test_several_agents(tmp_path, overrides, columns):
    """Teams in joint rows, agents as columns: the loop is the same."""
    run = rlrun.train(*overrides, "debug=smoke", "run.total_steps=120", f"run.dir={tmp_path}/r",
                      "logger.tensorboard=false", quiet=True)  # fmt: skip
    agent = run.agent()
    assert agent.columns == columns
    n = 2 * columns
    returns = play(agent, agent.env(2), n, agent.eval_seed)
    found = load_trained(run.directory)
    config = found.plan.config
    evaluator = Evaluator(
        config.env, episodes=2, seed=agent.eval_seed, max_steps=99, agents=config.agents
    )
    assert sorted(returns) == sorted(evaluator.run(found.policy, env_steps=0).returns)
    evaluator.close()
    with pytest.raises(rlrun.ConfigError, match="policy="):
        agent.q_values(agent.env(2).reset(seed=0)[0])
    if columns > 1:
        with pytest.raises(rlrun.ConfigError, match=r"use agent.env\(1\)"):
            agent.env()
        with pytest.raises(rlrun.ConfigError, match=r"n = 3: .*2"):
            agent.reset(3)
    else:
        obs, _ = agent.env().reset(seed=0)
        agent.reset()
        assert agent.act(obs).shape == (2,)


def test_environments_are_those_of_the_run(trained):
    """The wrappers of the config and the arguments of evaluations; arrays are the caller's."""
    agent = rlrun.load(trained("ppo"))
    env = agent.env(2)
    assert env.metadata["autoreset_mode"] is gym.vector.AutoresetMode.NEXT_STEP
    obs, _ = env.reset(seed=3)
    rows = make_env(load_trained(trained("ppo").directory).plan.config.env, num_envs=2)
    np.testing.assert_array_equal(obs, rows.reset(seed=3))
    kept = obs.copy()
    with pytest.raises(rlrun.ConfigError, match="render=True"):
        env.render()
    later, *_ = env.step(env.action_space.sample())
    np.testing.assert_array_equal(obs, kept)
    assert (later != kept).any()
    assert env.observation_space.contains(later)
    env.close()
    rows.close()


def test_environments_can_be_drawn(trained):
    """A single one by its own render(), the native vector environment by its rows."""
    agent = rlrun.load(trained("r2d2"))
    for n in (None, 2):
        env = agent.env(n, render=True)
        env.reset(seed=0)
        picture = env.render()
        assert (picture.dtype, picture.ndim, picture.shape[2]) == (np.uint8, 3, 3)
        assert picture.std() > 0
        env.close()
