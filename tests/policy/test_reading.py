"""Reading an algorithm takes its file and its base: few modules take part in an update."""

import sys
from pathlib import Path

import pytest

import rlrun
from tests.policy.updates import policy_of, samples_of

ROOM = Path(rlrun.__file__).parent
TYPES = ("types.py", "tree.py", "schema/")  # shapes of data, not steps of an algorithm
LIMITS = {
    "r2d2": 14, "dqn": 12, "sac": 12, "ppo": 12, "td3": 12, "ddpg": 12, "a2c": 12, "impala": 12,
    "pqn": 14,
    "cql": 13, "cql_sac": 14, "drqn": 14, "rsac": 15, "rtd3": 15, "qmix": 17, "bc": 13, "iql": 15,
}  # fmt: skip
TEAM = ("env=twostep", "agents=joint")
ENVS = {"sac": "pendulum", "td3": "pendulum", "ddpg": "pendulum", "cql_sac": "pendulum"}
ENVS |= {"rsac": "pendulum", "rtd3": "pendulum"}


def modules_of(policy, sample) -> set[str]:
    """Files of rlrun whose functions ``policy.update(sample)`` calls."""
    found = set()

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOM):
            found.add(path.relative_to(ROOM).as_posix())

    sys.setprofile(note)
    try:
        policy.update(sample)
    finally:
        sys.setprofile(None)
    return {name for name in found if not name.startswith(TYPES)}


@pytest.mark.parametrize("name", LIMITS)
def test_an_update_runs_through_few_modules(name, tmp_path):
    env = TEAM if name == "qmix" else (f"env={ENVS.get(name, 'cartpole')}",)
    line = (f"policy={name}", *env, "learner.backend=torch")
    if name in ("bc", "cql", "cql_sac", "iql"):
        line += ("pipeline=serial",)
    one, two = samples_of(*line, directory=tmp_path, count=2)
    policy = policy_of(*line)
    policy.update(one)
    found = modules_of(policy, two)
    assert len(found) <= LIMITS[name], sorted(found)
    assert not any(module.startswith("kernels/") for module in found)
    own = type(policy).__module__.removeprefix("rlrun.").replace(".", "/") + ".py"
    assert own in found
