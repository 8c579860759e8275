"""Makes the runs in ``healthy/`` of real ones: ``python -m tests.reports.thin_run RUN_DIR NAME``.

Kept are config.yaml, run.json without the machine, and the records: floats with six digits, of
times every fourth. The runs, of seed 0 and solved: ``policy=dqn env=cartpole``, ``policy=ppo
env=cartpole``, ``policy=r2d2 env=cartpole``, ``policy=r2d2 env=tmaze``, ``policy=sac
env=pendulum``.
"""

import json
import sys
from pathlib import Path

from rlrun.run.files import read_record, seal

HEALTHY = Path(__file__).parent / "healthy"


def shortened(line: str) -> str:
    values = json.loads(line)
    steps = {"env_steps": values.pop("env_steps")}
    short = {name: float(f"{value:.6g}") for name, value in values.items()}
    return json.dumps(steps | short) + "\n"


def thin(run_dir: Path, name: str) -> None:
    out = HEALTHY / name
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.yaml").write_text((run_dir / "config.yaml").read_text())
    record = read_record(run_dir)
    words = [word for word in record["command"][1:] if "=" in word and "run.dir" not in word]
    host = {"hostname": "box", "platform": "Linux", "cpu_count": 2}
    changes = {"command": ["rlrun", *words], "host": host, "git": None, "files": {}}
    (out / "run.json").write_bytes(seal(record | changes))
    for file, step in (("metrics.jsonl", 1), ("timings.jsonl", 4)):
        lines = (run_dir / file).read_text().splitlines()
        kept = [*lines[:-1:step], lines[-1]]
        (out / file).write_text("".join(map(shortened, kept)))


if __name__ == "__main__":
    thin(Path(sys.argv[1]), sys.argv[2])
