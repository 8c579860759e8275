"""rlrun: a config-driven experiment runner for recurrent reinforcement learning."""

__version__ = "0.1.0"
