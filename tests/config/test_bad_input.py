"""Every mistake in a config: one line, the right exit code, nothing on the disk, no traceback."""

import ctypes
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.config.checks import keys as checks
from tests.in_process import Done, files_under

BAD = [  # (command line, what the line on stderr must hold)
    # names
    ("policy=r2dd2", "policy = r2dd2: unknown option", "did you mean policy=r2d2"),
    ("polcy=r2d2", "polcy = r2d2: unknown", "did you mean policy?"),
    ("policy=base/on_policy", "policy = base/on_policy: unknown option; one of a2c, bc", "choose"),
    ("-m policy=dqn,base/on_policy", "policy = base/on_policy: unknown option", "sweep job 1"),
    ("policy/base=on_policy", "policy/base = on_policy: unknown key", "mean policy?"),
    ("+policy/base=on_policy", "policy/base = on_policy: unknown key", "mean policy?"),
    ("env=cartpol", "env = cartpol: unknown option", "env=cartpole"),
    ("experiment=paper", "experiment = paper", "r2d2_paper"),
    ("policy.lrr=1", "policy.lrr = 1: unknown key", "did you mean policy.lr"),
    ("+policy.lrr=1", "policy.lrr = 1: unknown key", "did you mean policy.lr"),
    ("++policy.lrr=1", "policy.lrr = 1: unknown key", "did you mean policy.lr"),
    ("sed=1", "sed = 1: unknown", "did you mean seed?"),
    ("+foo.bar=1", "foo", "unknown key"),
    ("run.eval_evry=1", "run.eval_evry", "run.eval_every"),
    ("env=tmaze env.lenth=5", "env.lenth = 5", "env.length"),
    ("policy=dqn policy.burnin_step=4", "policy.burnin_step", "unknown key"),
    ("policy.lr.strt=1", "policy.lr.strt", "policy.lr.start"),
    ("buffer=uniform buffer.alpha=0.5", "buffer.alpha = 0.5", "unknown key"),
    ("gamma=0.9", "gamma = 0.9: unknown key", "did you mean policy.gamma?"),
    ("lr=0.1", "lr = 0.1: unknown key", "did you mean policy.lr?"),
    ("total_steps=1000", "total_steps = 1000: unknown key", "did you mean run.total_steps"),
    ("cuda=true", "cuda = true: unknown key", "did you mean device?"),
    ("n_envs=4", "n_envs = 4: unknown key", "did you mean collector.num_envs?"),
    ("policy.learning_rate=1", "policy.learning_rate = 1: unknown", "did you mean policy.lr?"),
    ("env.num_envs=4", "env.num_envs = 4: unknown key", "did you mean collector.num_envs?"),
    ("policy=dqn buffer.alpha=1", "buffer.alpha = 1: unknown", "buffer=prioritized or buffer=rank"),
    ("policy=dqn experiment=r2d2_paper", "sets policy.learn_unroll_len", "leave policy=dqn or"),
    ("policy=dqn policy.batch_size=4", "policy=ppo or policy=pqn has it", "set learner.batch_size"),
    ("env=CartPole-v1", "env = CartPole-v1: that is an id", "mean env=cartpole?; any Gymnasium id"),
    ("env=Foo-v3", "env = Foo-v3: that is an id", "env=gym env.id=Foo-v3"),
    # typed for nothing
    ("explore.epsilon=0.1", "explore.epsilon = 0.1: it would change nothing", "explore=schedule"),
    ("explore.epsilon.start=1", "explore.epsilon.start = 1: it would", "explore.eps and"),
    ("explore=none explore.epsilon=0.1", "explore.epsilon = 0.1: it would", "explore=schedule"),
    ("policy=dqn explore.eps=0.1", "explore.eps = 0.1: it would", "set explore=ladder"),
    ("explore.epsilon=0.1", "schedule or collector.num_envs=1 reads it", "explore.eps and explore"),
    ("memory=none memory.hidden=64", "mingru, lru, ffm, rtu, lmu or gtrxl reads it; set m", ""),
    ("memory=lstm memory.r_min=0.5", "memory.r_min = 0.5: unknown key", "memory=lru"),
    ("memory=lru memory.r_min=1", "memory.r_min = 1.0: must be below memory.r_max = 1", ""),
    ("memory=lru memory.max_phase=7", "memory.max_phase = 7", "6.28"),
    ("memory=gtrxl memory.heads=5", "heads = 5: must divide memory.hidden = 32", "change"),
    ("memory=rtu memory.recurrence=no", "memory.recurrence = no", "linear, nonlinear"),
    ("memory=ffm memory.horizon=1", "memory.horizon = 1.0: must be within [2, 30000]", "change"),
    ("memory=gru memory.forget_bias=2", "memory=lstm or mingru reads it; set memory=lstm", ""),
    ("policy=c51 policy.taus=3", "now: policy.atoms, policy.v_min and policy.v_max", "implicit"),
    ("explore.temperature=1", "explore.temperature = 1: it would", "set explore=boltzmann"),
    ("transport.keep=3", "transport.keep = 3: it would", "set transport=coded"),
    ("agents.team_reward=sum", "agents.team_reward = sum: it would", "policy=qmix"),
    ("policy=dqn policy.v_min=-5", "policy.v_min = -5: it would", "distribution=categorical"),
    ("policy=c51 policy.taus=3", "policy.taus = 3: it would", "distribution=implicit"),
    ("policy=dqn policy.munchausen_tau=1", "policy.munchausen_tau = 1: it would", "munchausen="),
    (
        "policy=dqn policy.noisy_resample=chunk",
        "policy.noisy_resample = chunk: it would",
        "policy.noisy=",
    ),
    ("policy=dqn buffer.demo_ratio=0.5", "buffer.demo_ratio = 0.5: it would", "buffer.demos=DIR"),
    ("policy=dqn buffer.relabel_ratio=0.5", "relabel_ratio = 0.5: it would", "relabel=future"),
    ("policy=dqn memory.hidden=64", "memory.hidden = 64: it would", "memory=lstm, gru, m"),
    ("memory=gru memory.forget_bias=2", "memory.forget_bias = 2: it would", "memory=lstm or"),
    ("policy=sac env=pendulum policy.state_init=zero", "policy.state_init = zero: it", "memory="),
    ("policy=random learner.batch_size=64", "learner.batch_size = 64: it", "a policy that learns"),
    (
        "policy=sac env=pendulum policy.temperature_auto=false policy.target_entropy=-3",
        "policy.target_entropy = -3: it would",
        "policy.temperature_auto=true",
    ),
    ("run.eval_every=70 env.eval_every=17", "env.eval_every = 17: it would", "set run.eval_every"),
    ("debug=smoke env.total_steps=99", "env.total_steps = 99: it would", "set run.total_steps"),
    ("run.stop_value=3 env.stop_value=4", "env.stop_value = 4: it would", "set run.stop_value"),
    (
        "policy=dqn env.warmup_steps=5",
        "env.warmup_steps = 5: it would",
        "learner.learning_starts is 1",
    ),
    # names of earlier versions
    ("policy.noisy_hold=chunk", "noisy_hold = chunk: unknown key", "mean policy.noisy_resample?"),
    ("learner.start_after=9", "start_after = 9: unknown", "did you mean learner.learning_starts?"),
    ("start_after=9", "start_after = 9: unknown key", "did you mean learner.learning_starts?"),
    ("policy.target_theta=0.1", "target_theta = 0.1: unknown", "did you mean policy.target_tau?"),
    # words of other libraries
    ("policy=sac env=pendulum policy.alpha=0.2", "policy.alpha = 0.2", "mean policy.temperature?"),
    ("policy=sac env=pendulum policy.ent_coef=1", "policy.ent_coef", "mean policy.temperature?"),
    ("policy=ppo policy.ent_coef=1", "policy.ent_coef = 1", "mean policy.entropy_coef?"),
    ("policy=ppo policy.n_steps=128", "policy.n_steps = 128", "mean collector.n_sample?"),
    ("policy=dqn policy.n_steps=3", "policy.n_steps = 3", "mean policy.nstep?"),
    ("run.seed=3", "run.seed = 3", "did you mean seed?"),
    ("run.device=cpu", "run.device = cpu", "did you mean device?"),
    ("learner.train_freq=4", "learner.train_freq = 4", "mean learner.replay_ratio?"),
    ("policy.learn.batch_size=8", "policy.learn = 8", "mean learner.batch_size?"),
    ("algo=ppo", "algo = ppo", "did you mean policy?"),
    ("policy=PPO", "policy = PPO: unknown option", "did you mean policy=ppo?"),
    ("policy=", "policy = : unknown option", "choose one: policy=NAME"),
    # types
    ("policy.lr=abc", "policy.lr = abc: is not a number", "set policy.lr"),
    ("policy.lr=nan", "policy.lr = nan: is not finite", ""),
    ("policy.lr=inf", "policy.lr = inf: is not finite", ""),
    ("policy.lr=-inf", "policy.lr = -inf: is not finite", ""),
    ("policy.lr=null", "policy.lr = null", "number"),
    ("env.eval_every=0", "env.eval_every = 0: must be > 0", "change env.eval_every"),
    ("env.total_steps=abc", "env.total_steps = abc: is not an integer", "set env.total_steps"),
    ("policy.nstep=2.5", "policy.nstep = 2.5: is not an integer", ""),
    ("policy.nstep=true", "policy.nstep = true: is not", "integer"),
    ("policy.double=1", "policy.double = 1: is not a truth value", "true or false"),
    ("policy.gamma=" + "9" * 400, "policy.gamma = 999", "is not finite"),
    ("policy.lr=" + "9" * 400, "policy.lr = 999", "is not finite"),
    ("run.max_time=" + "9" * 400, "run.max_time = 999", "is not finite"),
    ("policy.gamma=true", "policy.gamma = true: is not a number", ""),
    ("policy.gamma='0.9'", "policy.gamma = 0.9: is not a number", ""),
    ("torso.hidden=64", "torso.hidden = 64: is not a list", ""),
    ("torso.hidden=[64,x]", "torso.hidden[1] = x: is not", ""),
    ("torso.hidden=[0]", "torso.hidden = [0]", "> 0"),
    ("torso.activation=rlu", "torso.activation = rlu", "torso.activation=relu"),
    ("policy=null", "policy = null", "r2d2"),
    ("memory=null", "memory = null", "lstm"),
    ("policy=[r2d2,dqn]", "policy", ""),
    ("run=3", "run = 3", "mapping"),
    ("env.id=???", "env.id", "has no value"),
    ("~policy.lr", "policy.lr", "missing"),
    ("~buffer", "buffer", "missing"),
    ("policy.lr=${nope}", "policy.lr = ${nope}", "nope"),
    ("buffer.alpha.start=1", "buffer.alpha.start = 1", "has no parts"),
    ("policy.lr=[1", "policy.lr=[1", "cannot be read"),
    ("torso.hidden=[64, 64]", "torso.hidden=[64,:", "write torso.hidden=[64,64]"),
    ("policy.lr={kind: cosine}", "policy.lr={kind:: the value", "all of it: 'policy.lr={...}'"),
    ("env.kwargs={a: b}", "env.kwargs={a:: the value cannot", "needs quotes around all of it"),
    ("render=true", "render = true: unknown key", "remove render"),
    ("policy_lr=1", "policy_lr = 1: unknown key", "did you mean policy.lr?"),
    ("env-id=CartPole-v1", "env-id = CartPole-v1: unknown key", "did you mean env.id?"),
    ("run.eval_freq=1", "run.eval_freq = 1: unknown key", "did you mean run.eval_every?"),
    ("logdir=x", "logdir = x: unknown key", "did you mean run.dir?"),
    ("use_lstm=true", "use_lstm = true: unknown key", "did you mean memory?"),
    ("policy=recurrent_ppo", "unknown option", "did you mean policy=ppo memory=lstm?"),
    # words that a yaml file reads as no text
    ("env.kwargs.limit=None", "env.kwargs.limit = None: an unquoted", "write null"),
    ("++env.kwargs.flag=off", "env.kwargs.flag = off: an unquoted", "write false"),
    ("env=tmaze env.length=0x10", "env.length = 0x10: an unquoted", "write 16"),
    ("env={kwargs:{a:[1,yes]}}", "env.kwargs.a = yes: an unquoted", "write true"),
    ("env.kwargs.a=.inf", "env.kwargs.a = .inf: an unquoted", "write inf"),
    ("-m env.kwargs.flag='off',off", "env.kwargs.flag = off", "\"env.kwargs.flag='off'\""),
    ("search env.kwargs.flag=choice(on,off)", "env.kwargs.flag = on: an unquoted", "true"),
    ("env.kwargs.a=???", "env.kwargs.a = ???: has no value", "give env.kwargs.a=VALUE"),
    ("run.dir=None", "run.dir = None: is a text", "set run.dir=null"),
    ("buffer.mmap=", "buffer.mmap = : is empty", "set buffer.mmap=null"),
    ("seed=0,1", "seed = 0,1", "-m"),
    ("policy=r2d2 list", "list: is no KEY=VALUE", ""),
    # on-policy
    ("policy=ppo buffer=prioritized", "buffer = prioritized", "buffer=rollout is allowed"),
    ("policy=a2c buffer=uniform", "buffer = uniform", "policy=r2d2 or policy=dqn"),
    ("policy=dqn buffer=rollout", "buffer = rollout", "policy=ppo or policy=a2c or policy=impala"),
    ("policy=ppo explore=schedule", "explore = schedule", "explore=none is allowed"),
    ("policy=ppo collector.unit=episode", "collector.unit = episode", "step is allowed"),
    ("policy=ppo collector.unit=window", "collector.unit = window", "step is allowed"),
    ("policy=ppo learner.update_per_collect=4", "update_per_collect = 4", "policy.epochs"),
    ("policy=impala learner=default", "learner.update_per_collect = null", "replay_ratio=null"),
    ("policy=ppo collector.n_sample=9000", "buffer.capacity = 16384", "buffer.capacity=18032"),
    ("policy=ppo buffer.mmap=rows", "buffer.mmap = rows", "set it to null"),
    ("policy=ppo buffer.load=rows", "buffer.load = rows", "keeps no replay"),
    ("policy=a2c pipeline=overlapped", "pipeline = overlapped", "policy=ppo or policy=impala"),
    ("policy=ppo policy.normalize_obs=true env=identity", "policy.normalize_obs = true", "Box"),
    ("policy=ppo policy.epochs=0", "policy.epochs = 0", ">= 1"),
    ("policy=ppo policy.gae_lambda=1.1", "policy.gae_lambda = 1.1", "[0, 1]"),
    ("policy=impala policy.c_clip=0", "policy.c_clip = 0", "> 0"),
    ("policy=pqn env=pendulum", "policy = pqn", "policy=ppo"),
    ("policy=pqn buffer=uniform", "buffer = uniform", "policy=r2d2 or policy=dqn"),
    ("policy=pqn learner.update_per_collect=2", "update_per_collect = 2", "policy.epochs"),
    ("policy=pqn policy.q_lambda=1.1", "policy.q_lambda = 1.1", "[0, 1]"),
    ("policy=pqn policy.segment_len=9", "policy.segment_len = 9", "memory=lstm"),
    ("policy=pqn learner.compile=true", "learner.compile = true", "policy=dqn"),
    ("policy=sac env=pendulum torso.layer_norm=true", "torso.layer_norm = true", "false"),
    # ranges
    ("seed=-1", "seed = -1", "[0, 2^32)"),
    ("policy.learn_unroll_len=5", "policy.learn_unroll_len = 5", "policy.learn_unroll_len >= 6"),
    ("policy.burnin_step=-1", "policy.burnin_step = -1", ">= 0"),
    ("policy.nstep=0", "policy.nstep = 0", ">= 1"),
    ("policy.gamma=1.5", "policy.gamma = 1.5", "[0, 1]"),
    ("policy.gamma=-0.1", "policy.gamma = -0.1", "[0, 1]"),
    ("policy.eta=2", "policy.eta = 2", "[0, 1]"),
    ("policy.lr=-1", "policy.lr = -1", "must be >= 0"),
    ("policy.lr.over=0", "policy.lr.over = 0", "> 0"),
    ("policy.lr.kind=piecewise", "policy.lr.points", "two"),
    (
        "policy.target_update_every=100 policy.target_tau=0.1",
        "policy.target_update_every",
        "exactly one",
    ),
    ("policy.target_tau=null", "target_tau (= null)", "give one of them a number"),
    ("buffer.alpha=1.5", "buffer.alpha = 1.5", "[0, 1]"),
    ("buffer.beta.end=1.5", "buffer.beta = 1.5", "[0, 1]"),
    ("buffer.beta.start=1 buffer.beta.end=0.4", "buffer.beta", "must not decrease"),
    ("buffer.priority_eps=-1", "buffer.priority_eps = -1", ">= 0"),
    ("explore.eps=2", "explore.eps = 2", "[0, 1]"),
    ("collector.n_sample=0", "collector.n_sample = 0", ">= 1"),
    ("collector.num_envs=0", "collector.num_envs = 0", ">= 1"),
    ("collector.overlap=2", "collector.overlap = 2", "null"),
    ("collector.tiling=plain", "collector.overlap = null", "plain"),
    (
        "learner.update_per_collect=1 learner.replay_ratio=16",
        "learner.update_per_collect = 1",
        "exactly one",
    ),
    ("run.total_steps=-1", "run.total_steps = -1", ">= 0"),
    ("run.total_steps=9", "learner.learning_starts = ", "run.total_steps = 9"),
    ("run.stop_after=0", "run.stop_after = 0", ">= 1"),
    # across keys
    ("learner.batch_size=100000", "learner.batch_size = 100000", "buffer.capacity"),
    ("buffer.capacity=383", "buffer.capacity = 383", "hold no window"),
    ("buffer.capacity=1", "buffer.capacity = 1", "buffer.capacity=400"),
    ("buffer.window_capacity=16", "learner.batch_size = 32", "16 windows"),
    ("learner.learning_starts=60001", "learner.learning_starts = 60001", "60000"),
    ("collector.learned_overlap=15", "collector.learned_overlap = 15", "0 to 14"),
    (
        "collector.tiling=plain collector.residual=last collector.overlap=24",
        "collector.overlap = 24",
        "0 to 23",
    ),
    ("policy=dqn memory=lstm", "memory = lstm", "policy=r2d2"),
    ("policy=sac memory=lstm env=pendulum", "policy.learn_unroll_len = null", "policy=rsac"),
    ("policy=rtd3 policy.head_hidden=[] env=pendulum", "policy.head_hidden = []", "linear"),
    ("policy=td3 torso.hidden=[] env=pendulum", "policy.head_hidden = []", "linear"),
    ("policy=td3 torso.hidden=[0] env=pendulum", "torso.hidden = [0]", "> 0"),
    ("policy=sac env=pendulum policy.learn_unroll_len=1", "learn_unroll_len = 1", ">= 2"),
    ("policy=sac env=pendulum policy.temperature=0", "temperature = 0", "temperature_auto=false"),
    ("policy=td3 env=pendulum policy.noise=-0.1", "policy.noise = -0.1", "must be >= 0"),
    ("policy=td3 env=pendulum policy.smoothing=-0.1", "policy.smoothing = -0.1", ">= 0"),
    ("policy=ddpg env=pendulum policy.actor_every=0", "policy.actor_every = 0", ">= 1"),
    ("policy=ddpg env=pendulum policy.smoothing=1", "policy.smoothing = 1", "unknown key"),
    ("policy=sac env=cartpole", "policy = sac", "policy=r2d2 or policy=dqn"),
    ("policy=rsac env=bitflip buffer.relabel=future", "buffer.relabel", "sac"),
    ("policy=ppo learner.cuda_graph=true", "policy ppo has no updates of that", "or use policy="),
    ("policy=sac env=pendulum learner.compile=true", "policy sac has no", "policy=dqn"),
    ("policy=rainbow learner.cuda_graph=true", "drawn on the host", "policy.noisy=null"),
    ("policy=iqn learner.cuda_graph=true", "drawn on the host", "distribution=implicit"),
    ("policy=random explore=boltzmann", "no action values to take a softmax of", "policy=dqn"),
    ("explore=boltzmann explore.temperature=null", "explore.temperature = null", "needs a number"),
    ("policy=dqn policy.munchausen=0.9", "policy.munchausen = 0.9", "policy.double=false"),
    (
        "policy=c51 policy.double=false policy.munchausen=0.9",
        "policy.munchausen = 0.9",
        "distribution=none, quantile or implicit",
    ),
    (
        "policy=r2d2 policy.double=false policy.munchausen=0.9",
        "policy.munchausen = 0.9",
        "policy.value_rescale_eps=null",
    ),
    (
        "policy=dqn agents=separate env=twostep learner.cuda_graph=true",
        "learner.cuda_graph = true: every agent's part",
        "agents=shared",
    ),
    ("policy=ppo policy.memory_lr=1e-5", "policy.memory_lr = 1e-5: it would", "memory="),
    ("policy=dqn policy.trace_lambda=0.5", "policy.trace_lambda = 0.5: it would", "trace=retrace"),
    (
        "policy=dqn policy.trace=retrace buffer.demos=some/data",
        "policy.trace = retrace: it reads the probability of each action",
        "set policy.trace=watkins_q_lambda",
    ),
    ("policy=c51 policy.v_min=200", "policy.v_max = 100.0", "must be > policy.v_min = 200"),
    ("policy=qrdqn policy.td_clip=1", "policy.td_clip = 1.0", "set it to null"),
    ("policy=c51 memory=lstm", "memory = lstm: policy c51 sees single rows", "r2d2_c51"),
    ("policy=dqn memory.hidden=64", "memory.hidden = 64: it would change", "use policy=r2d2"),
    (
        "policy=cql buffer=uniform pipeline=serial memory.hidden=64",
        "memory.hidden",
        "use one that does",
    ),
    ("policy=rainbow env=pendulum", "policy = rainbow: it acts in Discrete", "policy=sac"),
    ("policy=rsac env=cartpole", "policy = rsac: it acts in Box", "policy=r2d2"),
    ("-m policy=rainbow,c51 memory=gru", "policy rainbow sees single rows", "sweep job 0"),
    (
        "policy=dqn experiment=zoo_ppo_cartpole",
        "experiment = zoo_ppo_cartpole: it sets policy.gae_lambda, which policy=dqn does not",
        "leave policy=dqn",
    ),
    (
        "policy=ppo experiment=zoo_ppo_cartpole policy.gae=1",
        "policy.gae = 1: unknown",
        "gae_lambda",
    ),
    ("policy=random env=pong", "env = pong", "env=atari env.game=Pong"),
    ("policy=random env=ALE/MsPacman-v5", "env = ALE/MsPacman-v5", "env=atari env.game=MsPacman"),
    ("policy=random env=gym env.id=PongNoFrameskip-v4", "PongNoFrameskip-v4", "env.game=Pong"),
    ("policy=random env=gym env.id=Pong-v0", "Pong-v0", "env.game=Pong"),
    ("policy=random env=gym env.id=Pong-ram-v4", "Pong-ram-v4", "ALE/Pong-v5 env.kwargs.obs_type"),
    ("policy=random env=cartpole collector.keep_info=[log_prob]", "log_prob", "another key"),
    ("policy=ppo experiment=zoo_ppo_cartpole +policy={foo:1}", "policy.foo", "unknown key"),
    ("policy=dqn policy.name=${nope}", "policy.name = ${nope}: Interpolation key", ""),
    ("policy=dqn policy.lr={start:1,stop:2}", "policy.lr.stop = 2: unknown", "end"),
    ("policy=random collector.unit=window", "collector.unit = window", "collector.unit=step"),
    ("policy=random bonus=rnd", "bonus = rnd: policy random learns from no", "set bonus=none"),
    ("bonus=rdn", "bonus = rdn: unknown option", "bonus=rnd"),
    ("bonus=rnd bonus.gamma=2", "bonus.gamma = 2", "[0, 1]"),
    ("bonus=rnd bonus.coefficient=-1", "bonus.coefficient = -1", "must be >= 0"),
    ("bonus.lr=1", "bonus.lr", "unknown key"),
    ("policy=scripted policy.choices=[2]", "2 is no action of Discrete(2)", "count from 0"),
    ("policy=scripted policy.choices=[[0,1]]", "policy.choices = [[0.0, 1.0]]", "a bare number"),
    ("policy=scripted policy.choices=[x]", "policy.choices[0] = x", "is not a number"),
    ("policy=scripted policy.choices=[0,1]", "policy.choices", "exactly one"),
    ("policy=scripted policy.script=sine", "policy.script = sine", "policy.script=cycle"),
    ("policy=scripted memory=lstm", "memory = lstm", "memory=none"),
    # environment
    ("env.id=CartPole-v9", "env.id = CartPole-v9", "CartPole-v1"),
    ("env=gym", "env.id", "has no value"),
    ("env=gym env.id=Nope-v0", "env.id = Nope-v0", ""),
    ("env=gym env.id=Pendulum-v1", "policy = r2d2", "Pendulum-v1 has Box"),
    ("env=tmaze env.kwargs.colour=1", "env.kwargs", "colour"),
    ("torso=nature_cnn", "torso = nature_cnn", "torso=mlp"),
    (
        "policy=dqn env=gym env.id=tests.env.screen:test/Screen-v0 env.backend=sync "
        "env.frame_stack=4",
        "torso = mlp: layers of [256, 256] units would see Box uint8 [4, 36, 36]",
        "set torso=nature_cnn",
    ),
    (
        "policy=dqn env=gym env.id=tests.env.screen:test/FloatScreen-v0 env.backend=sync",
        "torso = mlp: layers of [256, 256] units would see Box float32 [36, 36, 3]",
        "set torso=nature_cnn, or 'env.wrappers=[flatten_obs]'",
    ),
    *(
        (
            f"policy=dqn env=gym env.id=tests.env.screen:test/Beside-v0 torso={torso}",
            f"torso = {torso}: ",
            "torso=image_and_vector",
        )
        for torso in ("mlp", "nature_cnn")
    ),
    ("policy=dqn torso=image_and_vector", "torso = image_and_vector: it needs", "torso=mlp"),
    ("env.frame_stack=0", "env.frame_stack = 0", ">= 1"),
    ("env.frame_stack=1.5", "env.frame_stack = 1.5", "integer"),
    ("env=identity env.frame_stack=4", "env.frame_stack = 4", "Discrete(4); allowed is 1"),
    ("env=bitflip env.frame_stack=4", "observation['achieved_goal']", "set env.frame_stack=1"),
    # machine
    ("device=gpu", "device = gpu", "cuda:N"),
    ("device=cuda:x", "device = cuda:x", "cuda:N"),
    # code
    ("+policy._target_=os.system", "policy._target_ = os.system", "cannot run code"),
    ("policy._target_=os.system", "policy._target_ = os.system", "cannot run code"),
    ("+env.kwargs.a._target_=os.system", "env.kwargs.a._target_", "cannot run code"),
    ("hydra.launcher._target_=os.system", "hydra.launcher._target_", "cannot run code"),
    ("+hydra.callbacks.x._target_=os.system", "hydra.callbacks.x._target_", "cannot run code"),
    (
        "+hydra.job_logging.handlers.file.()=os.system",
        "",
        "",
    ),
    ("hydra.job_logging.handlers.file.class=os.system", "class = os.system", "cannot run code"),
    ("hydra/launcher=nope", "hydra/launcher = nope", "basic"),
    ("-m hydra.sweeper.params={seed:1}", "hydra", ""),
    ("hydra.run.dir=null", "hydra.run.dir = null", ""),
    ("hydra.run.dir=${nope}", "hydra.run.dir", "nope"),
    (
        "policy=scripted policy.script=function policy.function=os:system",
        "policy.function = os:system: the package os is not trusted",
        "--trust os",
    ),
    # usage
    ("--trust", "--trust : is no package", "--trust mypkg"),
    ("--foo", "--foo", "--help"),
    ("--policy r2d2", "--policy: is no flag", "write policy=r2d2"),
    ("--policy=r2d2 env=tmaze", "--policy: is no flag", "write policy=r2d2"),
    ("policy = r2d2", "policy: unknown subcommand", "no spaces: policy=r2d2"),
    ("policy r2d2 env cartpole", "policy: unknown subcommand", "no spaces: policy=r2d2"),
    ("env:cartpole", "env:cartpole: unknown subcommand", "no spaces: env=cartpole"),
    ("--config-dir nowhere", "--config-dir = nowhere", "no such directory"),
    ("--config-name other", "--config-name = other", ""),
    ("--config-path /tmp", "--config-path", "--config-dir"),
    ("--experimental-rerun x.pickle", "--experimental-rerun", "rlrun resume"),
    ("trian", "trian: unknown subcommand", "eval, play, resume, fork, verify, diff, export"),
    ("lst", "lst: unknown subcommand", "rlrun list"),
    ("list --foo", "--foo", "--help"),
    ("eval", "RUN_DIR", ""),
    ("resume", "are required: RUN_DIR[@ENV_STEP]; see", ""),
    ("eval nowhere", "RUN_DIR = nowhere: no such directory", ""),
    ("resume nowhere", "RUN_DIR = nowhere: no such directory", ""),
    ("eval . --episodes 0", "--episodes", ">= 1"),
    ("eval .", "is no run directory", ""),
    ("sweep=lr_grid", "sweep = lr_grid: is for a sweep", "rlrun -m"),
    ("-m run.dir=x seed=1,2", "run.dir = x", "sweep.dir"),
    # several agents
    ("policy=qmix env=cartpole", "policy = qmix: it learns the value of a team", "policy=dqn"),
    ("policy=vdn env=pendulum", "one agent acts in Pendulum-v1; policy=ddpg", "env=twostep"),
    ("policy=qmix env=cartpole", "one agent acts in CartPole-v1", "env=twostep"),
    ("policy=vdn env=twostep agents=shared", "agents = shared: policy vdn is", "agents=joint is"),
    ("policy=dqn env=twostep agents=joint", "agents = joint: policy dqn", "policy=qmix"),
    ("policy=r2d2 env=cartpole agents=separate", "env.id = CartPole-v1: one agent", "env=relay"),
    ("policy=qmix env=twostep env.frame_stack=2", "env.frame_stack = 2: joint rows", "=1"),
    ("policy=qmix env=twostep agents.agent_id=true", "agents.agent_id", "policy.agent_id=true"),
    ("policy=qmix env=twostep policy.mixer_hidden=0", "policy.mixer_hidden = 0", "1"),
    ("policy=qmix env=twostep policy.mixer=mean", "policy.mixer = mean", "monotonic"),
    ("env=pettingzoo policy=dqn", "env.id", "has no value"),
    (
        "policy=ppo env=gym env.id=tests.faults.fuzz_env:FuzzEnv-v0 +env.kwargs.obs=no_tuple",
        "which has no parts",
        "wrap the environment",
    ),
    ("env=pettingzoo env.id=pettingzoo:nowhere.x_v0 policy=dqn", "cannot be imported", ""),
    (
        "policy=dqn env=twostep buffer.capacity=79 collector.num_envs=8 learner.batch_size=1 "
        "learner.learning_starts=0",
        "num_envs x 2 agents x 5 = 80",
        "buffer.capacity=80",
    ),
]


def assert_one_error(done: Done, code: int = 2) -> None:
    assert done.code == code, done
    assert done.out == ""
    assert re.fullmatch(r"rlrun: error: [^\n]+\n", done.err), done.err


@pytest.mark.parametrize(("line", "first", "second"), BAD, ids=[b[0][:50] for b in BAD])
def test_one_line_exit_2_nothing_made(
    rlrun: Callable[..., Done], tmp_path: Path, line: str, first: str, second: str
) -> None:
    done = rlrun(*line.split())
    assert_one_error(done)
    assert first in done.err
    assert second in done.err
    assert files_under(tmp_path) == []


def test_a_rollout_larger_than_allowed(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    done = rlrun("policy=ppo", "buffer.max_bytes=1000")
    assert done.code == 7
    assert "buffer.capacity = 16384: rollout" in done.err
    assert files_under(tmp_path) == []


def test_values_with_spaces(rlrun: Callable[..., Done]) -> None:
    done = rlrun("buffer.beta={kind: linear, start: 1, end: 0.4}")
    assert_one_error(done)
    assert "buffer.beta = [1.0, 0.4]: must not decrease" in done.err
    assert_one_error(rlrun("policy.lr={kind: liner, start: 1, end: 0}"))


def test_yaml_that_is_none(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "mine/env").mkdir(parents=True)
    (tmp_path / "mine/env/broken.yaml").write_text("id: [1\nnote: x: y\n")
    assert_one_error(rlrun("--config-dir", "mine", "env=broken"))


def test_cuda_without_cuda(
    rlrun: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "cuda_devices", lambda: (0, "this machine has no NVIDIA driver"))
    done = rlrun("device=cuda")
    assert_one_error(done, 7)
    assert "device = cuda: this machine has no NVIDIA driver" in done.err
    monkeypatch.setattr(checks, "cuda_devices", lambda: (2, ""))
    assert_one_error(rlrun("device=cuda:2"), 7)
    assert files_under(tmp_path) == []
    assert rlrun("device=cuda:1").code == 0


def test_cuda_probe_agrees_with_torch() -> None:
    code = "import sys; from rlrun.config.checks.keys import cuda_devices; c = cuda_devices()[0]; \
assert 'torch' not in sys.modules; import torch; assert c == torch.cuda.device_count(), c"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cuda_probe_without_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Spec:
        origin = str(tmp_path / "__init__.py")

    (tmp_path / "version.py").write_text("cuda: Optional[str] = '12.8'\n")

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(checks, "find_spec", lambda name: Spec)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    checks.cuda_devices.cache_clear()
    assert checks.cuda_devices() == (0, "this machine has no NVIDIA driver")
    (tmp_path / "version.py").write_text("cuda: Optional[str] = None\n")
    checks.cuda_devices.cache_clear()
    assert checks.cuda_devices() == (0, "the installed torch is built without CUDA")
    checks.cuda_devices.cache_clear()


def test_unwritable_output(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file")
    for line in (["seed=1"], ["-m", "seed=1,2"], ["run.dir=outputs/x"]):
        assert_one_error(rlrun(*line), 6)
    assert files_under(tmp_path) == ["outputs"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_read_only_output(rlrun: Callable[..., Done], tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        assert_one_error(rlrun("seed=1"), 6)
    finally:
        tmp_path.chmod(0o755)


PROCESS = [
    ("policy.lrr=1", 2),
    ("policy.lr=abc", 2),
    ("env.id=CartPole-v9", 2),
    ("run.dir=/proc/nope/x", 6),
    ("-m policy.gamma=0.5,1.5", 2),
    ("eval nowhere", 2),
]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("run.dir=d/x", "run.dir"),
        ("-m seed=0,1 sweep.dir=d/x", "sweep.dir"),
        ("search policy.lr=interval(1e-4,1e-3) search.dir=d/x", "search.dir"),
        ("probe env=bandit probe.dir=d/x", "probe.dir"),
        ("bench memory --quick bench.dir=d/x", "bench.dir"),
    ],
)
def test_a_directory_that_cannot_be_written_is_named_by_the_key_that_mends_it(
    rlrun: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, key: str
) -> None:
    (tmp_path / "d").mkdir()
    access, locked = os.access, tmp_path / "d"  # root could write it
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p) != locked and access(p, mode))
    done = rlrun(*line.split())
    assert_one_error(done, 6)
    assert f"error: {key} = {tmp_path}/d/x: " in done.err
    assert f"{key}=PATH" in done.err


@pytest.mark.parametrize("line", ["seed=1", "-m seed=0,1", "list", "eval r", "verify r", "--help"])
def test_a_working_directory_that_is_gone(
    rlrun: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = rlrun(*line.split())
    monkeypatch.chdir(tmp_path)
    assert_one_error(done, 6)


@pytest.mark.parametrize(("line", "code"), PROCESS)
def test_as_a_process(tmp_path: Path, line: str, code: int) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "rlrun.cli.main", *line.split()]
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert_one_error(Done(done.returncode, done.stdout, done.stderr), code)
    assert files_under(tmp_path) == []
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds < 3  # 2 s is the promise; CI machines are slow


def test_what_is_not_idle(rlrun: Callable[..., Done]) -> None:
    """One environment goes by epsilon under the ladder too; null asks for nothing."""
    for line in ("collector.num_envs=1 explore.epsilon=0.1", "policy=dqn explore.eps=null",
                 "policy=c51 policy.v_min=-5", "transport=coded transport.keep=3",
                 "policy=mdqn policy.munchausen_tau=0.1",
                 "policy=rainbow policy.noisy_resample=chunk"):  # fmt: skip
        assert rlrun(*line.split()).code == 0, line


def test_an_experiment_is_blamed_only_for_keys_of_its_own(
    rlrun: Callable[..., Done], tmp_path: Path
) -> None:
    (tmp_path / "my/policy").mkdir(parents=True)
    (tmp_path / "my/policy/mine.yaml").write_text("defaults: [ppo, _self_]\nbogus: 1\n")
    line = ("--config-dir", str(tmp_path / "my"), "policy=mine", "experiment=zoo_ppo_cartpole")
    done = rlrun(*line)
    assert_one_error(done)
    assert "policy.bogus = 1: unknown key" in done.err
