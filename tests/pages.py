"""The READMEs as their tests read them: pages, code blocks, sections, and how a command is run."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "conf/README.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "rlrun").rglob("*.md")),
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("*.md")),
]
TINY = "debug=smoke"
SHORTER = {  # what is added to end soon where debug=smoke does not win or is not allowed
    "rlrun policy=dqn env=gym env.id=Acrobot-v1 run.total_steps=100000": "run.total_steps=400",
    **{
        f"rlrun resume outputs/first run.total_steps={steps} run.stop_return=null": (
            "run.total_steps=600"
        )
        for steps in (40000, 100000)
    },
    "rlrun fork outputs/trunk policy.lr=1e-4 run.total_steps=100000 run.stop_return=null "
    "run.dir=outputs/branch": "run.total_steps=600",
    "rlrun policy=r2d2 env=cartpole_novel pipeline=ray pipeline.num_actors=2 "
    "run.total_steps=5000": "run.total_steps=400",
    "rlrun search policy=dqn env=cartpole 'policy.lr=interval(1e-4,1e-2,log)' "
    "'policy.nstep=choice(1,3)' search.dir=outputs/found": (
        "search.trials=2 search.seeds=1 search.final_seeds=1"
    ),
    "rlrun resume outputs/found search.trials=80": "search.trials=2",
    "rlrun eval RUN env.length=1000000 eval.max_episode_steps=4000000 --episodes 2": (
        "env.length=20 eval.max_episode_steps=40"
    ),
    "rlrun -m policy=dqn,r2d2 env=cartpole seeds=auto seeds.max=20 sweep.dir=outputs/decided": (
        "seeds.max=2 seeds.group=2"
    ),
    "rlrun policy=ppo env=cartpole policy.gamma=0.1 run.total_steps=7000 -q "
    "run.dir=outputs/short_sighted": "run.total_steps=700",
    **{
        f"rlrun policy={p} env=cartpole buffer.load=data/first run.total_steps=10000": (
            "run.total_steps=400"
        )
        for p in ("iql", "bc_recurrent")
    },
}
SUBCOMMANDS = (
    "eval", "resume", "fork", "report", "compare", "verify", "diff", "export", "codec", "doctor",
    "list", "help", "play",
)  # fmt: skip
SHOWS = {"--help", "--version", "--cfg"}  # flags of lines that train nothing


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S)


def commands(page: str) -> list[str]:
    """Every command line shown, without its comment."""
    lines = (
        re.sub(r"\s+# .*", "", li).strip()
        for block in blocks(page, "sh")
        for li in block.split("\n")
    )
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def argv_of(command: str) -> list[str]:
    """The command that is run for a command line of a README."""
    program, *words = shlex.split(command)
    assert program == "rlrun", f"{command}: neither run nor excluded with a reason"
    if SHOWS & {*words}:
        return words
    tiny = [] if words and words[0] in SUBCOMMANDS else [TINY]
    return [*words, *tiny, *shlex.split(SHORTER.get(command, ""))]
