"""A config as the flat row that TensorBoard's HPARAMS tab shows."""

import re
from dataclasses import asdict
from typing import Any

import yaml

from rlrun.schema import Config


def hyperparameters(config: Config, raw_yaml: str) -> dict[str, Any]:
    """{"a.b": scalar} of every key; where the yaml has a resolver, its text: it may be a secret."""
    return _flat(asdict(config)) | _secrets(raw_yaml)


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return {"a.b": scalar} of a nested config."""
    if not isinstance(tree, dict):
        return {prefix: tree if isinstance(tree, (bool, int, float, str)) else str(tree)}
    out: dict[str, Any] = {}
    for key, value in tree.items():
        out |= _flat(value, f"{prefix}.{key}" if prefix else key)
    return out


def _secrets(raw_yaml: str) -> dict[str, str]:
    """Keys whose yaml has a resolver (${oc.env:...}), with that text in place of its value."""
    raw = _flat(yaml.safe_load(raw_yaml) or {})
    return {k: v for k, v in raw.items() if isinstance(v, str) and re.search(r"\$\{\w+\.\w+:", v)}
