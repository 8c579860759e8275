"""conf/README.md lists the keys of the yaml files, with their present defaults and comments."""

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from rlrun.cli.yaml_keys import PRESETS
from tests.key_reference import CONF, TASKS, reference, split


def test_the_reference_is_up_to_date() -> None:
    assert split()[1] == reference(), "run: python -m tests.key_reference"


def test_the_reference_has_every_key_of_every_yaml() -> None:
    """Counted by OmegaConf, not by the parser of the generator."""
    text = split()[1]
    for path in sorted(CONF.rglob("*.yaml")):
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        assert isinstance(values, dict)
        group = path.relative_to(CONF).parts[0].replace("_base", "policy")
        prefix = "" if group in (*PRESETS, "_root", path.name) else f"{group}."
        prefix = "hydra.launcher." if group == "hydra" else prefix
        values = {k: v for k, v in values.items() if k not in ("defaults", "hydra")}
        for key in values if path.name == TASKS else leaves(values, prefix):
            assert f"| `{key}` |" in text, f"{path}: {key}"


def leaves(values: dict[Any, Any], prefix: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
