"""An exported agent: what is in it, who takes it, and that its programs act as the run does."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import rlrun
from rlrun.cli.main import main
from rlrun.run import card as cards
from rlrun.run.card import scores_of
from rlrun.run.files import seal, unseal
from rlrun.trust import trusting
from tests.in_process import assert_one_line
from tests.once import made_once
from tests.policy.export import untrained
from tests.reports.forge import forge, forge_seeds, forge_sweep
from tests.run import forge as hostile

pytest.importorskip("onnxruntime")
pytest.importorskip("pygame")
EPISODES = 100
RUN = (
    "policy=r2d2", "memory=lstm", "memory.hidden=16", "env=cartpole_novel", "debug=smoke",
    "env.max_episode_steps=40", "run.total_steps=200", "run.eval_every=200",
    "logger.tensorboard=false", "seed=3",
)  # fmt: skip


def varied(weights: dict[str, torch.Tensor]) -> None:
    """Draw weights with which actions change from row to row, with few ties."""
    rng = torch.Generator().manual_seed(1)
    for x in weights.values():
        if x.is_floating_point():
            x.copy_(torch.randn(x.shape, generator=rng))


def _make(path: Path) -> None:
    rlrun.train(*RUN, f"run.dir={path}/run", quiet=True)
    hostile.weights(varied)(path / "run")
    line = rlrun.export_card(path / "run", path / "card")
    assert "8 files" in line


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of R2D2, ``run``, and its agent, ``card``."""
    return made_once(tmp_path_factory, "card", _make)


@pytest.fixture
def card(whole: Path, tmp_path: Path) -> Path:
    """A copy of the agent, to be changed."""
    return Path(shutil.copytree(whole / "card", tmp_path / "card"))


FILES = {
    "README.md", "act.c", "act.py", "config.yaml", "episode.gif", "model.json",
    "model.safetensors", "policy.onnx",
}  # fmt: skip


def test_what_is_in_it(whole: Path) -> None:
    import onnx

    card = whole / "card"
    assert {p.name for p in card.iterdir()} == FILES
    assert (card / "episode.gif").read_bytes()[:4] == b"GIF8"
    model = onnx.load(card / "policy.onnx")
    assert {x.key: x.value for x in model.metadata_props}["rlrun_interface"] == "1"
    inputs = [x.name for x in model.graph.input]
    assert inputs == ["obs", "first", "prev_action", "prev_reward", "state.0", "state.1"]

    page = (card / "README.md").read_text()
    _, front, text = page.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert {"reinforcement-learning", "r2d2", "rlrun/CartPoleNoVel-v0"} <= {*fields["tags"]}
    record = json.loads((whole / "run/run.json").read_text())
    (result,) = fields["model-index"][0]["results"]
    assert result["metrics"][0]["value"].startswith(f"{record['eval']['return_mean']:.2f} +/-")
    for fact in ("rlrun play .", "rlrun.load", "act.py", "cc -O2 act.c", "`state.1` | [n, 16]",
                 "memory=lstm", f"{record['eval']['return_mean']:.6g}"):  # fmt: skip
        assert fact in text
    for name in FILES - {"episode.gif"}:
        assert str(whole).encode() not in (card / name).read_bytes()


def test_it_is_taken_as_a_run_directory_is(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, card = whole / "run", whole / "card"
    assert rlrun.evaluate(card, episodes=3) == rlrun.evaluate(run, episodes=3)
    shown = rlrun.play(card, video=tmp_path / "a.gif", max_steps=5)
    assert shown == rlrun.play(run, video=tmp_path / "b.gif", max_steps=5)
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()
    assert rlrun.load(card).env_steps == rlrun.load(run).env_steps
    monkeypatch.chdir(card)
    assert main(["eval", ".", "--episodes", "1"]) == 0
    assert "return_mean" in capsys.readouterr().out
    assert {p.name for p in card.iterdir()} == FILES, "nothing was written"


def test_what_needs_a_run_refuses_it(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    card = str(whole / "card")
    for line in (
        ["resume", card],
        ["fork", card, "run.dir=new"],
        ["diff", card, card],
        ["export", card, "data"],
        ["export", "card", card, "again"],
        ["report", card],
        ["codec", "bench", card],
        ["eval", card, "--weights", "best"],
    ):
        capsys.readouterr()
        assert main(line) == 2, line
        assert_one_line(capsys)
    assert not [*tmp_path.iterdir()]
    (tmp_path / "all").mkdir()
    shutil.copytree(whole / "card", tmp_path / "all/card")
    shutil.copytree(whole / "run", tmp_path / "all/run")
    tables = rlrun.report([tmp_path / "all"])
    assert len(tables["scores"]) == 1, "an agent is no run"


# -- the same actions ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(whole: Path) -> dict[str, np.ndarray]:
    """Episodes of the run: obs, first, reward, action, and how far apart the values of Q are."""
    agent = rlrun.load(whole / "run")
    env = agent.env()
    found: dict[str, list[Any]] = {x: [] for x in ("obs", "first", "reward", "action", "gap")}
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=episode)
        agent.reset()
        reward, done = 0.0, False
        first = True
        while not done:
            q = agent.q_values(obs, reward)
            action = agent.act(obs, reward)
            for name, x in (("obs", obs), ("first", first), ("reward", reward),
                            ("action", action), ("gap", abs(q[0] - q[1]))):  # fmt: skip
                found[name].append(x)
            obs, reward, terminated, truncated, _ = env.step(action)
            first, done = False, terminated or truncated
    env.close()
    return {name: np.array(x) for name, x in found.items()}


def ran(command: list[str], lines: str = "", cwd: Path | None = None) -> str:
    """What a program prints that ends well."""
    given = {"input": lines, "cwd": cwd, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **given)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def assert_same(actions: np.ndarray, rows: dict[str, np.ndarray]) -> None:
    """Equal, but at ties of the action values."""
    assert len(rows["first"]) > 8 * EPISODES
    assert rows["first"].sum() == EPISODES
    assert 0.05 < rows["action"].mean() < 0.95, "both actions occur"
    assert len(actions) == len(rows["action"])
    same = actions == rows["action"]
    assert (same | (rows["gap"] < 1e-5)).all()
    assert same.mean() > 0.999


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
sys.path.insert(0, ".")
import numpy as np
from act import Agent
rows, agent = np.load(sys.argv[1]), Agent("policy.onnx")
columns = (rows[name] for name in ("obs", "reward", "first"))
np.save(sys.argv[2], [agent.act(*row) for row in zip(*columns, strict=True)])
"""


def test_python_without_torch_acts_as_the_run(
    whole: Path, rows: dict[str, np.ndarray], tmp_path: Path
) -> None:
    np.savez(tmp_path / "rows.npz", **rows)
    files = [str(tmp_path / name) for name in ("rows.npz", "actions.npy")]
    ran([sys.executable, "-B", "-c", WITHOUT_TORCH, *files], cwd=whole / "card")  # it is shared
    assert_same(np.load(tmp_path / "actions.npy"), rows)


def compiled(card: Path, tmp_path: Path) -> list[str]:
    """The command line of act.c; skips without a compiler or the library."""
    compiler = shutil.which("cc")
    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    libraries = [*Path(spec.origin).parent.glob("capi/libonnxruntime.so*")]
    if compiler is None or not libraries:
        pytest.skip("needs a C compiler and the library of ONNX Runtime")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
    program = str(tmp_path / "act")
    subprocess.run([compiler, *flags, str(card / "act.c"), "-o", program, "-ldl"], check=True)
    return [program, str(libraries[0]), str(card / "policy.onnx")]


def test_c_acts_as_the_run(whole: Path, rows: dict[str, np.ndarray], tmp_path: Path) -> None:
    columns = np.column_stack([rows["first"], rows["reward"], rows["obs"]])
    lines = "\n".join(" ".join(f"{x:.9g}" for x in row) for row in columns)
    out = ran(compiled(whole / "card", tmp_path), lines)
    assert_same(np.array(out.split(), int), rows)


def test_the_lines_of_its_readme_run(card: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", (card / "README.md").read_text(), re.M | re.S)
    programs = [block for block in blocks if "act." in block]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    compiled(card, card)  # skips
    printed = [
        subprocess.run(
            ["bash", "-ec", block], cwd=card, env={**os.environ, "PATH": path}, text=True,
            input="1 0 0.1 -0.1", capture_output=True, check=True,
        ).stdout.split("\n")
        for block in programs
    ]  # fmt: skip
    assert [len(lines) for lines in printed] == [4, 2]
    assert printed[0][2].startswith("episode 2: return ")
    assert printed[1][0].strip() in ("0", "1")


def test_c_reads_and_answers_numbers_of_other_types(whole: Path, tmp_path: Path) -> None:
    """An observation of two parts, an action of two floats, a state of integers."""
    from onnx import TensorProto as Type
    from onnx import helper, save

    def array(name: str, kind: int, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, kind, ["n", *shape])

    nodes = [
        helper.make_node("Cast", ["obs.a"], ["a"], to=Type.DOUBLE),
        helper.make_node("Add", ["a", "obs.b"], ["sum"]),
        helper.make_node("Cast", ["state.0"], ["before"], to=Type.DOUBLE),
        helper.make_node("Add", ["sum", "before"], ["double"]),
        helper.make_node("Cast", ["double"], ["action"], to=Type.FLOAT),
        helper.make_node("Cast", ["double"], ["next_state.0"], to=Type.INT32),
    ]
    inputs = [array("obs.a", Type.UINT8, 2), array("obs.b", Type.DOUBLE, 2),
              array("state.0", Type.INT32, 2)]  # fmt: skip
    outputs = [array("next_state.0", Type.INT32, 2), array("action", Type.FLOAT, 2)]
    graph = helper.make_graph(nodes, "policy", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    model.metadata_props.add(key="rlrun_interface", value="1")
    save(model, tmp_path / "policy.onnx")
    program, library, _ = compiled(whole / "card", tmp_path)
    out = ran([program, library, str(tmp_path / "policy.onnx")], "1 0 7 200 0.5 -0.25\n" * 2)
    assert out.split() == ["7.5", "199.75", "14.5", "398.75"]


def test_c_says_what_is_wrong(card: Path, tmp_path: Path) -> None:
    import onnx

    program, library, policy = compiled(card, tmp_path)
    model = onnx.load(policy)
    model.metadata_props[1].value = "2"
    onnx.save(model, tmp_path / "other.onnx")
    for command, lines, text in (
        ([program], "", "usage"),
        ([program, "none.so", policy], "", "none.so"),
        ([program, library, "none.onnx"], "", "none.onnx"),
        ([program, library, str(tmp_path / "other.onnx")], "", "interface"),
        ([program, library, policy], "1 0 0.5", "reward"),
    ):
        done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert text in done.stderr


# -- scores and pictures ---------------------------------------------------------------------------


def swept(top: Path, returns: list[float]) -> list[Path]:
    """Runs of a sweep over seeds."""
    runs = forge_seeds(top, returns)
    forge_sweep(top, [(run.name, "done") for run in runs])
    return runs


def test_scores_are_those_of_the_sweep(tmp_path: Path) -> None:
    returns = [1.0, 2.0, 3.0, 4.0, 6.0]
    run = swept(tmp_path / "five", returns)[2]
    found = scores_of(run, "final")
    table = rlrun.report([run.parent])["scores"]
    (row,) = table if isinstance(table, list) else table.to_dict("records")  # with pandas
    assert (found["agent"]["return_mean"], found["seeds"]) == (3.0, [0, 1, 2, 3, 4])
    assert found["finals"] == returns
    expected = [row[name] for name in ("score", "score low", "score high")]
    assert [found["mean"], found["low"], found["high"]] == expected
    found = scores_of(swept(tmp_path / "three", returns[:3])[0], "final")
    assert (found["seeds"], found["mean"], found["low"]) == ([0, 1, 2], 2.0, None)
    forge(tmp_path / "alone", seed=4)
    assert scores_of(tmp_path / "alone", "final")["seeds"] == [4]
    assert scores_of(tmp_path / "alone", "best")["agent"] is None
    assert "mean" not in scores_of(tmp_path / "alone", "129")


def test_its_readme_names_the_lines_that_went_on_with_the_run(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole / "run", tmp_path / "run"))
    words = ["/x/rlrun", "resume", str(run), "run.total_steps=900", "run.dir=elsewhere"]
    hostile.record(resumes=[words[:3], words])(run)
    hostile.reseal(run)
    rlrun.export_card(run, tmp_path / "card", gif=False)
    text = (tmp_path / "card" / "README.md").read_text()
    assert text.count("rlrun resume") == 1, "one that changed nothing is left out"
    assert "\nrlrun resume RUN_DIR run.total_steps=900\n" in text


def test_an_environment_without_pictures() -> None:
    """Private: a whole card takes seconds to export, and the reason is a sentence in it."""
    with trusting(["tests"]):
        trained = untrained("policy=dqn", "env=gym", "env.id=tests.env.walks:test/Walk-v0")
        gif, why = cards._film(trained)
    assert gif is None
    assert "env.id = tests.env.walks:test/Walk-v0" in why


# -- of a stranger ---------------------------------------------------------------------------------


def resealed(card: Path) -> None:
    """Give model.json the hash of the config."""
    fields = unseal((card / "model.json").read_bytes())
    fields["meta"]["files"] = {"config.yaml": [hostile.files.sha256_file(card / "config.yaml")]}
    (card / "model.json").write_bytes(seal(fields))


def edited(card: Path) -> None:
    (card / "config.yaml").write_text((card / "config.yaml").read_text() + "evil: 1\n")


def foreign(card: Path) -> None:
    hostile.config("  name: r2d2", "  name: evil:Policy")(card)
    resealed(card)


def not_finite(card: Path) -> None:
    path = card / "model.safetensors"
    weights, meta = hostile.checkpoint.load_weights(path)
    hostile.checkpoint.save_weights(path, {k: x * torch.nan for k, x in weights.items()}, meta)


CASES: dict[str, tuple[hostile.Change, int]] = {
    "edited config": (edited, 5),
    "edited config with its hash": (lambda card: (edited(card), resealed(card)), 2),
    "code of a stranger": (foreign, 2),
    "a link": (hostile.link("README.md", "../victim"), 2),
    "a link for the description": (hostile.link("model.json", "../victim"), 2),
    "a pipe": (hostile.pipe("model.safetensors"), 2),
    "damaged weights": (hostile.text("model.safetensors", b"\xff" * 64), 5),
    "huge weights": (hostile.sparse("model.safetensors"), 5),
    "weights of nan": (not_finite, 4),
    "no weights": (lambda card: (card / "model.safetensors").unlink(), 5),
    "deep description": (hostile.text("model.json", "[" * 100_000), 5),
    "empty description": (hostile.text("model.json", seal({})), 5),
    "files of a list": (hostile.text("model.json", seal({"meta": {"files": [1]}})), 5),
    "meta of a list": (hostile.text("model.json", seal({"meta": [1]})), 5),
}


def test_verify_finds_what_changed(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (card / "README.md").write_text("mine now")
    assert main(["verify", str(card)]) == 0
    for name in ("policy.onnx", "act.py", "model.safetensors", "config.yaml"):
        content = (card / name).read_bytes()
        (card / name).write_bytes(content[:-1])
        assert main(["verify", str(card)]) == 5
        assert f"{name}: " in capsys.readouterr().out
        (card / name).write_bytes(content)


@pytest.mark.parametrize("what", CASES)
def test_damage_and_deceit(
    card: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    change, code = CASES[what]
    (card.parent / "victim").write_text("untouched")
    (card.parent / "evil.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(card.parent)
    change(card)
    before = sorted(card.parent.rglob("*"))
    if what not in ("code of a stranger", "edited config with its hash", "weights of nan"):
        assert main(["verify", "card"]) in (2, 5)
        capsys.readouterr()
    assert main(["eval", "card", "--episodes", "1"]) == code
    assert_one_line(capsys)
    assert sorted(card.parent.rglob("*")) == before
    assert (card.parent / "victim").read_text() == "untouched"
