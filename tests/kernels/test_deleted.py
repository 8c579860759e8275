"""Without the room ``kernels`` and the table of its classes everything works, more slowly."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAIRS = (
    "dqn-cartpole ppo-pendulum a2c-identity impala-tmaze sac-pendulum td3-pendulum ddpg-pendulum "
    "pqn-cartpole"
)


ALONE = """
import sys
from importlib.util import find_spec
sys.meta_path[:] = [x for x in sys.meta_path if "editable" not in f"{x} {type(x).__module__}"]
assert find_spec("rlrun.kernels") is None
"""


def test_the_contract_holds_without_kernels(tmp_path):
    skip = shutil.ignore_patterns("kernels", "codec", "learning")  # compiled modules are copied
    for part in ("rlrun", "conf", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=skip)
    shutil.copytree(ROOT / "rlrun/codec", tmp_path / "rlrun/codec")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    chooser = tmp_path / "rlrun/build/policy.py"
    text, count = re.subn(r"^KERNELS = \{.*?\}", "KERNELS: dict[str, str] = {}",
                          chooser.read_text(), flags=re.MULTILINE | re.DOTALL)  # fmt: skip
    assert count == 1
    chooser.write_text(text)
    (tmp_path / "conftest.py").write_text(ALONE)  # no installed copy stands in
    chosen = PAIRS.replace(" ", " or ")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", chosen,
         "tests/contract/test_policies.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 7 * len(PAIRS.split())
