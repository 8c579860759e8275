"""Guesses for names that do not exist: former keys, words of other libraries, misspellings."""

import difflib
from collections.abc import Collection
from typing import Any

RENAMED = {  # keys of earlier versions
    "policy.noisy_hold": "policy.noisy_resample",
    "policy.target_theta": "policy.target_tau",
    "learner.start_after": "learner.learning_starts",
    "policy.grad_clip": "policy.max_grad_norm",
    "policy.clip": "policy.clip_range",
    "policy.eta": "policy.priority_eta",
    "policy.taus": "policy.num_quantiles",
    "policy.taus_target": "policy.num_quantiles_target",
    "policy.taus_act": "policy.num_quantiles_act",
    "explore.eps": "explore.base_epsilon",
    "run.stop_value": "run.stop_return",
    "env.stop_value": "env.stop_return",
}
FIXED = {  # removed keys of earlier versions -> their fixed value
    "bonus.adam_eps": 1e-8,
    "bonus.obs_clip": 5,
    "logger.progress_seconds": 5,
    "collector.trajectory": "episode",
    "buffer.weight_norm": "batch",
}
GONE = (  # removed keys and groups of pipeline=ray
    *("pipeline.num_shards", "pipeline.max_lead", "pipeline.prefetch"),
    *("pipeline.replay", "pipeline.learner"),
)
GONE_BECAUSE = "replay and learner are in the run's own process"
_SYNONYMS = {  # other last part of a key -> present ones, the likeliest first
    "learning_rate": "lr", "buffer_size": "capacity", "replay_size": "capacity",
    "replay_buffer_size": "capacity", "total_timesteps": "total_steps",
    "max_steps": "total_steps", "steps": "total_steps", "max_env_step": "total_steps",
    "n_envs": "num_envs", "env_num": "num_envs", "collector_env_num": "num_envs",
    "theta": "target_tau", "n_step": "nstep", "n_steps": "nstep n_sample",
    "num_steps": "n_sample", "rollout_length": "n_sample", "discount": "gamma",
    "discount_factor": "gamma", "tau": "target_tau", "polyak": "target_tau",
    "target_update_interval": "target_update_every", "target_update_freq": "target_update_every",
    "target_network_frequency": "target_update_every", "gradient_clip": "max_grad_norm",
    "alpha": "temperature", "ent_coef": "entropy_coef temperature", "vf_coef": "value_coef",
    "beta": "inverse_temperature", "n_epochs": "epochs", "update_epochs": "epochs",
    "clip_coef": "clip_range", "eps": "epsilon base_epsilon", "hidden_size": "hidden",
    "exploration_fraction": "epsilon", "exploration_final_eps": "epsilon",
    "train_freq": "replay_ratio", "gradient_steps": "replay_ratio", "hidden_sizes": "hidden",
    "hidden_size_list": "hidden", "net_arch": "hidden", "cuda": "device",
    "minibatch_size": "batch_size", "env_id": "id", "env_name": "id", "gym_id": "id",
    "env.name": "id",
    **dict.fromkeys(("timesteps", "max_timesteps", "n_timesteps", "env_steps"), "total_steps"),
    **dict.fromkeys(("output_dir", "log_dir", "logdir", "save_dir", "save_path"), "dir"),
    **dict.fromkeys(("exp_name", "run_name", "experiment_name"), "dir"),
    **dict.fromkeys(("eval_freq", "eval_interval", "freq"), "eval_every"),
    **dict.fromkeys(("num_gpus", "gpu", "gpus", "use_gpu"), "device"),
    **dict.fromkeys(("use_lstm", "rnn", "recurrent"), "memory"),
    **dict.fromkeys(("model", "network", "net"), "torso"),
    **dict.fromkeys(("lam", "lambda", "lambda_"), "gae_lambda trace_lambda"),
    **dict.fromkeys(("start_e", "end_e", "initial_eps", "final_eps"), "epsilon"),
    "num_workers": "num_envs", "random_seed": "seed", "n_seeds": "seed", "project": "wandb",
    "train_batch_size": "batch_size", "sgd_minibatch_size": "batch_size",
    "clip_param": "clip_range",
    "rollout_fragment_length": "n_sample", "time_limit": "max_episode_steps",
    "n_eval_episodes": "eval_episodes", "entropy_coeff": "entropy_coef temperature",
    "burn_in": "burnin_step", "n_critics": "num_critics", "n_quantiles": "num_quantiles",
    "top_quantiles_to_drop_per_net": "dropped_quantiles", "beta1": "adam_beta1",
    "adam_b1": "adam_beta1", "policy_delay": "actor_every", "policy_frequency": "actor_every",
    "sequence_length": "learn_unroll_len", "unroll_len": "learn_unroll_len",
    "algo": "policy", "algorithm": "policy", "agent": "policy",
    "norm_adv": "normalize_advantage", "normalize_advantages": "normalize_advantage",
    "norm": "normalize_obs normalize_reward normalize_advantage", "anneal_lr": "lr",
    "lr_schedule": "lr", "vecnormalize": "normalize_obs normalize_reward",
    "norm_obs": "normalize_obs", "norm_reward": "normalize_reward",
    **dict.fromkeys(("capture_video", "recordvideo", "vecvideorecorder"), "video_every"),
    **dict.fromkeys(("callback", "callbacks"), "eval_every checkpoint_every"),
    **dict.fromkeys(("save", "save_freq", "checkpointcallback", "save_model"), "checkpoint_every"),
    "evalcallback": "eval_every", "stoptrainingonrewardthreshold": "stop_return",
}  # fmt: skip

OTHER_OPTIONS = {  # option of another library -> what to type here
    "ddqn": "dqn", "double_dqn": "dqn", "dueling_dqn": "dqn", "per": "prioritized",
    "recurrent_ppo": "ppo memory=lstm", "rppo": "ppo memory=lstm", "rnn": "lstm",
    "transformer": "gtrxl", "ssm": "lru", "s5": "lru", "mamba": "mamba2",
    "xlstm": "mlstm slstm", "subproc": "async",
    "adqn": "dqn", "discrete_sac": "dqn", "reinforce": "a2c", "a3c": "a2c", "apex": "dqn",
    "epsilon_greedy": "schedule", "greedy": "none", "cnn": "nature_cnn",
}  # fmt: skip


def with_present_names(config: Any) -> Any:
    """Return a stored config with the present names of its keys, also inside ``${KEY}``."""
    present = dict(config)
    for group, values in config.items():
        if isinstance(values, dict):
            present[group] = {}
            for key, value in values.items():
                name = RENAMED.get(f"{group}.{key}", str(key)).rpartition(".")[2]
                if isinstance(value, str) and value[:2] == "${" and value[2:-1] in RENAMED:
                    value = f"${{{RENAMED[value[2:-1]]}}}"
                present[group][name] = value
    return present


def synonyms(name: str) -> list[str]:
    """Return the last parts of keys that another library's or a former ``name`` may mean."""
    former = [key for old, key in RENAMED.items() if old.rpartition(".")[2] == name]
    words = _SYNONYMS.get(name.lower()) or "".join(former[:1]).rpartition(".")[2]
    return words.split()


def nearest(name: object, known: Collection[str], count: int = 3) -> list[str]:
    """At most ``count`` of ``known`` that look like ``name``, best first."""
    text = str(name)
    close = difflib.get_close_matches(text, known, count, 0.65)
    starts = [k for k in sorted(known) if k.startswith(text) or text.startswith(k)]
    return list(dict.fromkeys([*close, *starts]))[:count]
