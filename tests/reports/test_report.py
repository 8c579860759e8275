"""``rlrun report``: what it prints and writes, from forged runs."""

import csv
import html
import json
import os
import re
import shutil
import xml.etree.ElementTree as ET

import pytest

from rlrun.reports import document, figures
from rlrun.reports.comparison import CAVEAT
from rlrun.reports.findings import Findings
from rlrun.reports.intervals import mean_interval, success_interval
from rlrun.reports.runs import read_run, read_runs
from rlrun.reports.sections import build_document
from rlrun.sweeps.search import SearchResult, Trial
from tests.in_process import assert_one_error
from tests.reports.forge import HOSTILE, forge, forge_seeds, forge_sweep, hostile_runs

SCORES = [1.0, 2.0, 3.0, 4.0, 6.0]


@pytest.fixture
def no_figures(monkeypatch):
    monkeypatch.setattr(figures, "available", lambda: False)


pytestmark = pytest.mark.usefixtures("no_figures")


def two_settings(top, seeds=5):
    for name, level in (("dqn", 100.0), ("r2d2", 300.0)):
        scores = [level + 7 * i * i for i in range(seeds)]
        override = [f"policy={name}"]
        forge_seeds(top / name, scores, policy__name=name, overrides=override, env__stop_return=300)


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def page_text(directory):
    return html.unescape((directory / "report/index.html").read_text())


def near(shown, exact):
    """Whether a number on a page is a number of a CSV, in four digits."""
    try:
        return float(shown) == pytest.approx(float(exact), rel=1e-3, abs=1e-9)
    except ValueError:
        return False


@pytest.mark.parametrize("words", [[], ["--threshold", "160", "--baseline", "dqn"]])
def test_two_settings(rlrun, tmp_path, words):
    two_settings(tmp_path / "runs")
    done = rlrun("report", "runs", *words)
    assert done.code == 0
    assert re.search(r"10 \D*10 \D*2 \D*1 ", done.out), "runs, scores, settings, environments"
    assert re.search(r"r2d2 .*200 \[.*\]", done.out)
    assert done.out.splitlines()[-1] == "report: runs/report/index.html"
    out = tmp_path / "runs/report"
    scores = read_csv(out / "scores.csv")
    assert [row["setting"] for row in scores] == ["dqn", "r2d2"]
    for row, level in zip(scores, (100.0, 300.0), strict=True):
        expected = mean_interval([level + 7 * i * i for i in range(5)])
        got = [float(row[key]) for key in ("score", "score low", "score high")]
        assert got == pytest.approx([expected.value, expected.low, expected.high])
    (row,) = read_csv(out / "comparisons.csv")
    assert (float(row["B - A"]), row["verdict"]) == (200, "r2d2 is better")
    dqn, r2d2 = read_csv(out / "efficiency.csv")
    arrived = ("2", "5") if words else ("0", "5")
    assert (dqn["arrived"], r2d2["arrived"]) == arrived
    assert dqn["median steps"] == "inf"
    page = page_text(tmp_path / "runs")
    assert page.count(CAVEAT) == 1, "a caveat is said once"
    for table, body in re.findall(r'id="table-(\w+)">\n<table>(.*?)</table>', page, re.S):
        rows = read_csv(out / f"{table}.csv")
        shown = re.findall(r"<tr>(.*?)</tr>", body.split("<tbody>")[1])
        assert len(shown) == len(rows)
        for cells, row in zip(shown, rows, strict=True):
            for text in re.findall(r'<td class="number">([^<]*)</td>', cells):
                for number in re.findall(r"-?[\d.]+(?:e[-+]\d+)?", text):
                    assert any(near(number, v) for v in row.values() if v), (table, number, row)
    markdown = (out / "report.md").read_text()
    assert all(f"{float(row['score']):.4g}" in markdown for row in scores)
    names = {path.stem for path in out.glob("*.csv")}
    assert names >= {"scores", "comparisons", "efficiency", "sensitivity", "config", "runs"}


def test_runs_that_stop_at_other_values_have_no_threshold(rlrun, tmp_path):
    for stop in (15.0, 25.0):
        forge(tmp_path / f"runs/{stop}", seed=int(stop), env__stop_return=stop)
    assert rlrun("report", "runs").code == 0
    assert not (tmp_path / "runs/report/efficiency.csv").exists()


# -- runs that do not count ------------------------------------------------------------------------


def test_failed_and_waiting_runs_are_listed(rlrun, tmp_path):
    forge(tmp_path / "s/0", seed=0)
    forge(tmp_path / "s/1", seed=1, status="failed")
    forge(tmp_path / "s/2", seed=2, status="running")
    forge(tmp_path / "s/4", seed=0, record={"started": "2025"})
    forge_sweep(tmp_path / "s", [("0", "done"), ("1", "failed"), ("3", "waiting")])
    (tmp_path / "s/2/config.yaml").write_text("[")
    (tmp_path / "s/1/rlrun.log").write_text("[2026][rlrun][INFO] - exit 4: loss = nan; lower it\n")
    done = rlrun("report", "s")
    assert re.search(r"1 failed\b.* 1 repeated", done.out)
    rows = {row["run"]: row for row in read_csv(tmp_path / "s/report/runs.csv")}
    status = {name: row["status"] for name, row in rows.items()}
    assert status == {"0": "done", "1": "failed", "2": "damaged", "3": "waiting", "4": "done"}
    assert rows["1"]["note"] == "exit 4: loss = nan; lower it"
    assert rlrun("report", "s/2").code == 0, "the only run has no config"


def test_health(rlrun, tmp_path):
    """A killed job has the exit code of the sweep; episodes give a binomial interval."""
    good = {"return_mean": 1.0, "success": 0.75, "episodes": 20}
    record = {"rollbacks": 2, "exact": False, "exact_reason": "threads", "eval": good}
    forge(tmp_path / "0", record={**record, "resumes": [["rlrun"]]})
    forge(tmp_path / "1", seed=1, status="running")
    with (tmp_path / "0/metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 1000, "collect/restarts": 3.0}\n')
    forge_sweep(tmp_path, [("0", "done"), ("1", "failed")], exit_code=-9)
    rlrun("report", ".")
    one, two = read_csv(tmp_path / "report/runs.csv")
    expected = {"exit code": "0", "NaN rollbacks": "2.0", "worker restarts": "3", "resumes": "1",
                "exact": "no", "note": "threads", "steps/s": "100.0"}  # fmt: skip
    assert expected.items() <= one.items()
    assert [float(one[k]) for k in ("success", "success low", "success high")] == pytest.approx(
        [0.75, 0.5090, 0.9134], abs=1e-4
    )
    assert (two["status"], two["exit code"]) == ("failed", "-9")


def test_damaged_metrics_are_said(rlrun, tmp_path):
    two_settings(tmp_path / "runs")
    path = tmp_path / "runs/dqn/dqn_s2/metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert "1 with damaged" in rlrun("report", "runs", "--score", "auc").out
    page = page_text(tmp_path / "runs")
    assert "dqn_s2" in page
    assert "seed 2 " in page
    notes = {row["run"]: row["note"] for row in read_csv(tmp_path / "runs/report/runs.csv")}
    assert "line 3" in notes["dqn_s2"]


def test_a_seed_that_failed_when_run_again(rlrun, tmp_path):
    forge(tmp_path / "runs/old", seed=1, record={"started": "2026-01-01"})
    forge(tmp_path / "runs/new", seed=1, status="failed", record={"started": "2026-01-02"})
    forge(tmp_path / "runs/one", seed=2, status="failed", record={"started": "2026-01-01"})
    forge(tmp_path / "runs/two", seed=2, record={"started": "2026-01-02"})
    assert rlrun("report", "runs").code == 0
    assert "dqn (seed 1)" in page_text(tmp_path / "runs")
    notes = {row["run"]: bool(row["note"]) for row in read_csv(tmp_path / "runs/report/runs.csv")}
    assert notes == {"old": False, "new": True, "one": False, "two": False}


@pytest.mark.parametrize("status", ["running", "failed", "done"])
def test_a_single_run(rlrun, tmp_path, status):
    """No interval, no sensitivity."""
    forge(tmp_path / "runs", status=status)
    done = rlrun("report", "runs")
    assert done.code == 0
    assert re.search(rf"1 run, {int(status == 'done')} ", done.out)
    (row,) = read_csv(tmp_path / "runs/report/scores.csv")
    assert (row["score low"], row["next seed low"]) == ("", "")
    assert not (tmp_path / "runs/report/sensitivity.csv").exists()


# -- several environments --------------------------------------------------------------------------


def test_several_environments(rlrun, tmp_path):
    for env, scale in (("A-v0", 1.0), ("B-v0", 50.0)):
        for name, level in (("dqn", 1.0), ("r2d2", 2.0)):
            scores = [scale * (level + i / 10) for i in range(5)]
            forge_seeds(tmp_path / f"{env}{name}", scores, env__id=env, policy__name=name)
    assert rlrun("report", ".", "--reference", "A-v0=0:4").code == 0
    (dqn, r2d2) = read_csv(tmp_path / "report/aggregates.csv")
    assert (dqn["environments"], dqn["seeds"]) == ("2", "5")
    assert float(dqn["IQM"]) < float(r2d2["IQM"])
    rows = read_csv(tmp_path / "report/comparisons.csv")
    across = [row["verdict"] for row in rows if "all" in row["environment"]]
    assert across == ["r2d2 is better"]
    assert "A-v0 0 to 4, B-v0 50 to 120" in page_text(tmp_path)


def test_other_settings_in_each_environment_have_no_aggregate(rlrun, tmp_path):
    for env, lr in (("A-v0", 1), ("B-v0", 2)):
        forge_seeds(tmp_path / f"runs/{env}", SCORES, env__id=env, policy__lr=lr)
    assert rlrun("report", "runs").code == 0
    assert not (tmp_path / "runs/report/aggregates.csv").exists()


@pytest.mark.parametrize("seeds", [4, 5])
def test_the_share_of_seeds_that_arrived_has_an_interval_from_five_on(rlrun, tmp_path, seeds):
    forge_seeds(tmp_path / "runs", [500.0] * seeds)
    assert rlrun("report", "runs", "--threshold", "450").code == 0
    (row,) = read_csv(tmp_path / "runs/report/efficiency.csv")
    assert (row["share"], row["share high"]) == ("1.0", "1.0" if seeds == 5 else "")


def test_success_is_a_rate_over_seeds(rlrun, tmp_path):
    """Of 6 seeds, not of 120 episodes."""
    for i, share in enumerate([1.0, 1.0, 1.0, 0.0, 1.0, 1.0]):
        result = {"return_mean": 1.0, "success": share, "episodes": 20}
        forge(tmp_path / f"runs/{i}", seed=i, record={"eval": result})
    assert rlrun("report", "runs").code == 0
    (row,) = read_csv(tmp_path / "runs/report/success.csv")
    expected = success_interval(5, 6)
    got = [float(row[k]) for k in ("success", "success low", "success high")]
    assert got == pytest.approx([expected.value, expected.low, expected.high])
    assert row["seeds"] == "6"


# -- where it is written ---------------------------------------------------------------------------


def test_an_earlier_report_is_replaced(rlrun, tmp_path):
    two_settings(tmp_path / "runs")
    rlrun("report", "runs")
    (tmp_path / "runs/report/mine.csv").write_text("kept")
    assert (tmp_path / "runs/report/sensitivity.csv").exists()
    shutil.rmtree(tmp_path / "runs/r2d2")
    assert rlrun("report", "runs").code == 0
    assert not (tmp_path / "runs/report/sensitivity.csv").exists()
    assert (tmp_path / "runs/report/mine.csv").exists()


@pytest.mark.parametrize("earlier", [False, True])
def test_an_interrupted_report_can_be_written_again(rlrun, tmp_path, monkeypatch, earlier):
    """The page is replaced last, so that it is never of other numbers than its tables."""
    two_settings(tmp_path / "runs")
    page = tmp_path / "runs/report/index.html"
    if earlier:
        rlrun("report", "runs")
    before = page.read_bytes() if earlier else b""
    real, left = document.replace_file, iter([1, 1, 1])

    def killed(path, content):
        if next(left, None) is None:
            path.with_name(f".tmp_{path.name}").write_bytes(content[:10])
            raise KeyboardInterrupt
        real(path, content)

    monkeypatch.setattr(document, "replace_file", killed)
    assert rlrun("report", "runs").code != 0
    assert page.read_bytes() == before if earlier else b"r2d2 is better" not in page.read_bytes()
    monkeypatch.setattr(document, "replace_file", real)
    assert rlrun("report", "runs").code == 0
    assert "r2d2 is better" in page.read_text()
    assert not [name for name in os.listdir(page.parent) if name.startswith(".")]


def test_no_report_is_written_over_one_on_other_runs(rlrun, tmp_path):
    """It goes into the directory that it is on; of several or a glob here, with a number."""
    two_settings(tmp_path / "runs", seeds=1)
    where = {}
    for words in ("runs", "runs/dqn", "runs/*", "runs/dqn runs/r2d2", "runs/r2d2 runs/dqn"):
        for _ in range(2):
            where[words] = rlrun("report", *words.split()).out.splitlines()[-1]
    places = ["runs/report", "runs/dqn/report", "report", "report-2", "report-2"]
    assert [*where.values()] == [f"report: {place}/index.html" for place in places]
    assert_one_error(rlrun("report", "runs/r2d2", "--out", "report"))
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert rlrun("report", "moved").out.endswith("report: moved/report/index.html\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/index.html").write_text("my own page")
    assert_one_error(rlrun("report", "moved", "--out", "out"))
    assert os.listdir(tmp_path / "out") == ["index.html"]


@pytest.mark.parametrize(
    ("argv", "text"),
    [("nowhere", "DIR = nowhere"), ("runs --score best", "--score = best"),
     ("runs --score best_of_last:0", "--score = best_of_last:0"),
     ("runs --reference A=1", "--reference = A=1"),
     ("runs --reference Cart=0:1", "--reference = Cart=0:1"),
     ("runs --baseline sac", "--baseline = sac"), ("runs --threshold nan", "nan"), ("", "DIR")],
)  # fmt: skip
def test_misuse_writes_nothing(rlrun, tmp_path, argv, text):
    two_settings(tmp_path / "runs", seeds=1)
    assert_one_error(rlrun("report", *argv.split()), text)
    assert not (tmp_path / "runs/report").exists()


def test_hostile_names_are_escaped(rlrun, tmp_path):
    hostile_runs(tmp_path)
    assert rlrun("report", "runs", "--out", "out").code == 0
    page, markdown = ((tmp_path / f"out/{n}").read_text() for n in ("index.html", "report.md"))
    for text in (page, markdown):
        assert "<script" not in text
    assert "<img" not in page
    assert html.escape(HOSTILE, quote=False)[:20] in page
    assert rlrun("report", "runs/0<b>", "--out", "one").code == 0
    assert "0&lt;b&gt;" in (tmp_path / "one/index.html").read_text().split("<nav>")[0]
    assert "0<b>" not in (tmp_path / "one/index.html").read_text()


def test_figures(tmp_path, monkeypatch):
    """Texts stay texts; no id is twice on the page; a PNG beside each."""
    pytest.importorskip("matplotlib")
    monkeypatch.undo()
    hostile_runs(tmp_path)
    found = Findings(read_runs([str(tmp_path)]), "final", threshold=3.0)
    pictures = {picture.name: picture for picture in build_document(found, "t").pictures}
    assert {"figure_scores", "figure_curves_steps", "figure_curves_wall"} <= {*pictures}
    ids = []
    for name, picture in pictures.items():
        assert picture.png.startswith(b"\x89PNG")
        assert len(picture.svg) < 100_000
        svg = "{http://www.w3.org/2000/svg}text"
        texts = "|".join(e.text or "" for e in ET.fromstring(picture.svg).iter(svg))
        assert "curves" not in name or (HOSTILE[:30] in texts and "_legend" in texts)
        inline = document.inline_svg(picture)
        own = re.findall(r'\bid="([^"]+)"', inline)
        assert {*re.findall(r'(?:url\(#|href="#)([^")]+)', inline)} <= {*own}
        assert "<style" not in inline
        ids += own
    assert len(ids) == len(set(ids))


# -- what chose its own seeds ----------------------------------------------------------------------

DECISION = {
    "settings": ["policy=dqn", "policy=r2d2"], "tasks": ["CartPole-v1"] * 2,
    "scores": [[1.0] * 6, [9.0] * 6], "level": 0.05, "status": "decided", "looks": 2,
    "comparisons": [{"settings": [0, 1], "better": 1, "look": 1, "seeds": 3}],
}  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    """Two settings far apart in two environments, in nested job directories; their names."""
    for env in ("A-v0", "B-v0"):
        for name, level in (("dqn", 0.0), ("r2d2", 50.0)):
            scores = [level + i for i in range(6)]
            forge_seeds(tmp_path / f"sweep/{env}/{name}", scores, env__id=env, policy__name=name)
    return [str(path.relative_to(tmp_path / "sweep")) for path in tmp_path.glob("sweep/*/*/*")]


def test_the_decision_of_seeds_auto_is_reported_and_not_tested_again(rlrun, tmp_path):
    two_settings(tmp_path / "runs")
    path = tmp_path / "runs/seeds.json"
    path.write_text(json.dumps(DECISION))
    assert "p = " not in rlrun("report", "runs").out
    assert not (tmp_path / "runs/report/comparisons.csv").exists()
    (row,) = read_csv(tmp_path / "runs/report/sequential.csv")
    assert (row["verdict"], row["decided after"]) == ("policy=r2d2 is better", "3")
    pair = {"settings": [0, 1], "better": None, "look": None, "seeds": None}
    plan = {**DECISION, "comparisons": [pair], "status": "undecided so far"}
    path.write_text(json.dumps(plan))
    rlrun("report", "runs")
    (row,) = read_csv(tmp_path / "runs/report/sequential.csv")
    assert (row["verdict"], row["decided after"]) != ("policy=r2d2 is better", "3")
    for content in (
        json.dumps({**plan, "scores": [[], []]}), "[]", "{", json.dumps({**DECISION, "level": "x"}),
        json.dumps({**DECISION, "comparisons": [{"settings": [0, 7], "better": 1}]}),
        json.dumps({**DECISION, "comparisons": [{"settings": [0, 1], "better": 7}]}),
        json.dumps({**DECISION, "comparisons": [{"settings": [0, 1], "better": -1}]}),
    ):  # fmt: skip
        path.write_text(content)
        done = rlrun("report", "runs")
        found = "is better" in done.out, "no decision" in done.out
        assert (done.code, *found) == (0, False, True)


@pytest.mark.parametrize("status", ["running", "failed", "done"])
def test_seeds_auto_is_known_without_a_decision(rlrun, sweep, tmp_path, status):
    """While it runs, after a failure, and where rlrun resume finished it."""
    jobs = [(name, "done") for name in sweep]
    command = ["rlrun", "-m", "policy=dqn,r2d2", "seeds=auto"]
    forge_sweep(tmp_path / "sweep", [*jobs[1:], (jobs[0][0], status)], commands=[command])
    done = rlrun("report", "sweep")
    assert "seeds=auto" in done.out
    assert not (tmp_path / "sweep/report/comparisons.csv").exists()
    assert "p = " not in rlrun("compare", "sweep/*/dqn", "sweep/*/r2d2").out
    (tmp_path / "link").symlink_to(tmp_path / "sweep" / sweep[0])
    assert read_run(tmp_path / "link").auto == tmp_path / "sweep", "by any name of a run"


# -- what a search chose ---------------------------------------------------------------------------

FRESH = (300.0, 310.0, 320.0, 330.0, 340.0)


@pytest.fixture
def search(tmp_path):
    top = tmp_path / "found"
    for seed, value in enumerate((400.0, 412.0)):
        forge(top / f"runs/t0007_s{seed}", seed=seed, returns=(value,))
    for seed, value in enumerate(FRESH, 2):
        forge(top / f"runs/final_t0007_s{seed}", seed=seed, returns=(value,))
    (top / "search.json").write_text(json.dumps({"settings": {"objective": "auc"}}))
    return top


def result(failed=()):
    """What a search writes."""
    trial = Trial(7, ("policy.lr=0.001",), "complete", {}, (400.0, 412.0))
    return SearchResult(trial, (2, 3, 4, 5, 6), FRESH, failed, mean_interval(FRESH)).to_dict()


def test_the_choice_of_a_search_and_its_bias(rlrun, search, tmp_path):
    (search / "result.json").write_text(json.dumps(result(failed=(8, 9))))
    line = next(
        li for li in rlrun("report", "found").unwrapped.splitlines() if li.startswith("found: ")
    )
    for fact in (
        "trial 7",
        "policy.lr=0.001",
        "320 [",
        "5 fresh seeds",
        "406",
        "selection bias 86",
    ):
        assert fact in line
    (row,) = read_csv(search / "report/selection.csv")
    expected = mean_interval(FRESH)
    got = [float(row[key]) for key in ("score", "score low", "score high", "selection bias")]
    assert got == pytest.approx([expected.value, expected.low, expected.high, 86.0])
    assert (row["objective"], row["on seeds"], row["fresh seeds"]) == ("auc", "2", "5")
    assert row["failed seeds"] == "2"


def test_trials_of_a_search_are_not_tested(rlrun, tmp_path):
    """The best of them was chosen by its score, also over several environments."""
    for env in ("A-v0", "B-v0"):
        for lr, level in ((1, 0.0), (2, 50.0)):
            for seed in range(6):
                path = tmp_path / f"{env}/runs/t{lr}_s{seed}"
                forge(path, seed=seed, policy__lr=lr, returns=(level + seed,), env__id=env)
        (tmp_path / env / "search.json").write_text("{}")
    for words in (["A-v0"], ["A-v0", "B-v0"]):
        done = rlrun("report", *words, "--out", "out")
        assert (done.code, "p = " in done.out) == (0, False)
        assert not (tmp_path / "out/comparisons.csv").exists()
        assert not (tmp_path / "out/aggregates.csv").exists()
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize(
    "content",
    [
        None, "[]", "{", json.dumps({**result(), "trial": "7"}), "[" * 10**5,
        json.dumps({**result(), "seeds": 3}), json.dumps({**result(), "selection_score": 1e999}),
    ],
)  # fmt: skip
def test_a_search_without_a_result(rlrun, search, content):
    if content is not None:
        (search / "result.json").write_text(content)
    done = rlrun("report", "found")
    assert (done.code, "result.json" in done.out) == (0, True)


def test_a_strangers_result(rlrun, search, tmp_path):
    """Texts are escaped, wrong numbers are no numbers, a link is not followed."""
    hostile = {"overrides": ["<script>\x1b[2J"], "score": "1", "low": True, "why": 3}
    (search / "result.json").write_text(json.dumps({**result(), **hostile}))
    done = rlrun("report", "found")
    assert "<script>\\x1b[2J" in done.out
    assert "<script" not in (search / "report/index.html").read_text()
    (search / "other").write_text(json.dumps(result()))
    (search / "result.json").unlink()
    os.symlink("other", search / "result.json")
    assert "result.json" in rlrun("report", "found").out
