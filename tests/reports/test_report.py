"""``rlrun report``: what it prints and writes, from forged runs, without figures."""

import csv
import html
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.reports import figures, write
from rlrun.reports.tables import Interval, show_cell
from rlrun.reports.write import TABLES
from tests.in_process import Done
from tests.reports.forge import forge, forge_seeds, forge_sweep

Command = Callable[..., Done]
HOSTILE = '</td><script>window.fired=1</script><img src=x onerror="fired=2">\'&`|*_$x^{2$'


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "available", lambda: False)


def two_settings(top: Path, seeds: int = 5) -> None:
    for name, level in (("dqn", 100.0), ("r2d2", 300.0)):
        scores = [level + 7 * i * i for i in range(seeds)]
        override = [f"policy={name}"]
        forge_seeds(top / name, scores, policy__name=name, overrides=override, env__stop_value=300)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def page_text(tmp_path: Path) -> str:
    return html.unescape((tmp_path / "runs/report/index.html").read_text())


def compared(tmp_path: Path) -> list[dict[str, str]]:
    return read_csv(tmp_path / "runs/report/comparisons.csv")


@pytest.mark.usefixtures("no_figures")
def test_scores_whose_squares_overflow_are_none(rlrun: Command, tmp_path: Path) -> None:
    for seed in range(3):
        forge(tmp_path / f"runs/{seed}", seed=seed, returns=[1.0, 1e308], env__id="Own-v0")
    assert rlrun("report", "runs").code in (0, 2)


@pytest.mark.usefixtures("no_figures")
class TestReport:
    def test_terminal(self, rlrun: Command, tmp_path: Path) -> None:
        two_settings(tmp_path / "runs")
        done = rlrun("report", "runs")
        assert done.code == 0
        lines = done.out.splitlines()
        assert lines[0] == "10 runs, 10 with a score, of 2 settings in 1 environment."
        assert re.match(r"r2d2 is better by 200 \[.*\] \(95 %, .*, p = .*\)\.", lines[1])
        assert lines[2].split()[:3] == ["setting", "seeds", "score"]
        assert [line.split()[0] for line in lines[3:5]] == ["dqn", "r2d2"]
        assert lines[-2].startswith("no figures: matplotlib is missing; pip install")
        assert lines[-1] == "report: runs/report/index.html"

    def test_numbers_of_the_page_are_those_of_the_csv(
        self,
        rlrun: Command,
        tmp_path: Path,
    ) -> None:
        two_settings(tmp_path / "runs")
        rlrun("report", "runs", "--out", "out")
        page = (tmp_path / "out/index.html").read_text()
        markdown = (tmp_path / "out/report.md").read_text()
        for row in read_csv(tmp_path / "out/scores.csv"):
            score = Interval(*(float(row[k]) for k in ("score", "score low", "score high")))
            assert f">{show_cell(score)}<" in page
            assert show_cell(score).replace("[", "\\[").replace("]", "\\]") in markdown
        for row in read_csv(tmp_path / "out/comparisons.csv"):
            gap = Interval(*(float(row[k]) for k in ("B - A", "B - A low", "B - A high")))
            assert f">{show_cell(gap)}<" in page
            assert f">{show_cell(float(row['p']))}<" in page

    def test_every_table_shown_is_a_csv_with_its_numbers(
        self,
        rlrun: Command,
        tmp_path: Path,
    ) -> None:
        two_settings(tmp_path / "runs")
        rlrun("report", "runs")
        page = (tmp_path / "runs/report/index.html").read_text()
        tables = re.findall(r'id="table-(\w+)">\n<table>(.*?)</table>', page, re.S)
        assert {name for name, _ in tables} <= set(TABLES)
        assert {"scores", "comparisons", "efficiency", "sensitivity", "config", "runs"} <= {
            name for name, _ in tables
        }
        for name, body in tables:
            rows = read_csv(tmp_path / f"runs/report/{name}.csv")
            shown = re.findall(r"<tr>(.*?)</tr>", body.split("<tbody>")[1])
            assert len(shown) == len(rows)
            for cells, row in zip(shown, rows, strict=True):
                for text in re.findall(r'<td class="number">([^<]*)</td>', cells):
                    known = [v for v in row.values() if v]
                    for number in re.findall(r"-?[\d.]+(?:e[-+]\d+)?", text):
                        assert any(_same(number, v) for v in known), (name, number, row)

    def test_failed_and_waiting_runs_are_listed(
        self,
        rlrun: Command,
        tmp_path: Path,
    ) -> None:
        forge(tmp_path / "s/0", seed=0)
        forge(tmp_path / "s/1", seed=1, status="failed")
        forge(tmp_path / "s/2", seed=2, status="running")
        forge(tmp_path / "s/4", seed=0, record={"started": "2025"})
        forge_sweep(tmp_path / "s", [("0", "done"), ("1", "failed"), ("3", "waiting")])
        (tmp_path / "s/2/config.yaml").write_text("[")
        done = rlrun("report", "s")
        assert "Not counted: dqn (1 failed, 1 repeated seed). See run health." in done.out
        assert "2 runs without a config that can be read" in done.out
        status = {row["run"]: row["status"] for row in read_csv(tmp_path / "s/report/runs.csv")}
        assert status == {"0": "done", "1": "failed", "2": "damaged", "3": "waiting", "4": "done"}

    def test_health(self, rlrun: Command, tmp_path: Path) -> None:
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
        expected = {"exit code": "0", "NaN rollbacks": "2.0", "worker restarts": "3",
                    "resumes": "1", "exact": "no", "note": "threads",
                    "steps/s": "100.0"}  # fmt: skip
        assert expected.items() <= one.items()
        assert [float(one[k]) for k in ("success", "success low", "success high")] == pytest.approx(
            [0.75, 0.5090, 0.9134], abs=1e-4
        )
        assert (two["status"], two["exit code"]) == ("failed", "-9")

    def test_runs_that_diverged_are_named(self, rlrun: Command, tmp_path: Path) -> None:
        """Leaving them out flatters the setting; the note is the error in their log."""
        forge_seeds(tmp_path / "runs", [1.0] * 3)
        path = forge(tmp_path / "runs/bad", seed=9, status="failed")
        (path / "rlrun.log").write_text("[2026][rlrun][INFO] - exit 4: loss = nan; lower it\n")
        rlrun("report", "runs")
        assert "Runs of dqn diverged (exit code 4)" in page_text(tmp_path)
        notes = {row["run"]: row["note"] for row in read_csv(tmp_path / "runs/report/runs.csv")}
        assert notes["bad"] == "exit 4: loss = nan; lower it"

    def test_damaged_metrics_are_said(self, rlrun: Command, tmp_path: Path) -> None:
        two_settings(tmp_path / "runs")
        path = tmp_path / "runs/dqn/dqn_s2/metrics.jsonl"
        path.write_bytes(path.read_bytes()[:-9])
        done = rlrun("report", "runs", "--score", "auc")
        assert "Not counted: dqn (1 with damaged metrics). See run health." in done.out
        page = page_text(tmp_path)
        assert "dqn_s2: metrics.jsonl is damaged." in page
        assert "dqn: seed 2 is done but not in the mean against env steps" in page
        assert "not in the mean against wall time" not in page
        notes = {row["run"]: row["note"] for row in read_csv(tmp_path / "runs/report/runs.csv")}
        assert notes["dqn_s2"] == "metrics.jsonl: line 3 is cut"

    def test_a_seed_that_failed_when_run_again(self, rlrun: Command, tmp_path: Path) -> None:
        forge(tmp_path / "runs/old", seed=1, record={"started": "2026-01-01"})
        forge(tmp_path / "runs/new", seed=1, status="failed", record={"started": "2026-01-02"})
        forge(tmp_path / "runs/one", seed=2, status="failed", record={"started": "2026-01-01"})
        forge(tmp_path / "runs/two", seed=2, record={"started": "2026-01-02"})
        rlrun("report", "runs")
        assert "Failed when run again: dqn (seed 1). The last run" in page_text(tmp_path)
        notes = {row["run"]: row["note"] for row in read_csv(tmp_path / "runs/report/runs.csv")}
        assert notes == {
            "old": "",
            "new": "an earlier run of this seed counts",
            "one": "",
            "two": "",
        }

    @pytest.mark.parametrize("status", ["running", "failed", "done"])
    def test_a_single_run(self, rlrun: Command, tmp_path: Path, status: str) -> None:
        forge(tmp_path / "runs", status=status)
        done = rlrun("report", "runs")
        assert done.code == 0
        assert f"1 run, {int(status == 'done')} with a score" in done.out
        assert "Sensitivity" not in page_text(tmp_path)

    def test_trials_of_a_search_are_not_tested(self, rlrun: Command, tmp_path: Path) -> None:
        """The best of them was chosen by its score; pruned ones are counted in short."""
        for t in range(8):
            for seed in range(5):
                status = "done" if t < 2 else "interrupted"
                path = tmp_path / f"runs/t{t}_s{seed}"
                forge(path, seed=seed, policy__lr=t, returns=(t + seed,), status=status)
        forge_seeds(tmp_path / "final", [3.0, 4.0, 5.0, 4.5, 3.5], policy__lr=1)
        for path in (tmp_path / "final").iterdir():
            path.rename(tmp_path / "runs" / path.name)
        (tmp_path / "search.json").write_text("{}")
        done = rlrun("report", "runs")
        assert "; and 1 other setting. See run health." in done.out
        assert "p = " not in done.out
        assert "its score is the one on fresh seeds" in page_text(tmp_path)
        assert not (tmp_path / "runs/report/comparisons.csv").exists()

    def test_trials_are_not_tested_over_several_environments(
        self, rlrun: Command, tmp_path: Path
    ) -> None:
        for env in ("A-v0", "B-v0"):
            for lr, level in ((1, 0.0), (2, 50.0)):
                for seed in range(6):
                    path = tmp_path / f"{env}/runs/t{lr}_s{seed}"
                    forge(path, seed=seed, policy__lr=lr, returns=(level + seed,), env__id=env)
            (tmp_path / env / "search.json").write_text("{}")
        done = rlrun("report", "A-v0", "B-v0")
        assert "is better" not in done.out
        assert not (tmp_path / "report/aggregates.csv").exists()

    def test_the_page_says_why_this_statistic(self, rlrun: Command, tmp_path: Path) -> None:
        two_settings(tmp_path / "runs")
        rlrun("report", "runs")
        assert "One environment: the mean of all 5 seeds, never the IQM" in page_text(tmp_path)
        forge_seeds(tmp_path / "runs/other", [1.0] * 5, env__id="Acrobot-v1")
        rlrun("report", "runs")
        assert "2 environments: the interquartile mean" in page_text(tmp_path)

    def test_few_seeds_have_no_interval(
        self,
        rlrun: Command,
        tmp_path: Path,
    ) -> None:
        two_settings(tmp_path / "runs", seeds=4)
        done = rlrun("report", "runs")
        assert "undecided: 4 seeds are fewer than 5" in done.out
        for row in read_csv(tmp_path / "runs/report/scores.csv"):
            assert (row["score low"], row["next seed low"]) == ("", "")

    def test_several_environments(self, rlrun: Command, tmp_path: Path) -> None:
        for env, scale in (("A-v0", 1.0), ("B-v0", 50.0)):
            for name, level in (("dqn", 1.0), ("r2d2", 2.0)):
                scores = [scale * (level + i / 10) for i in range(5)]
                forge_seeds(tmp_path / f"{env}{name}", scores, env__id=env, policy__name=name)
        done = rlrun("report", ".", "--reference", "A-v0=0:4")
        assert done.code == 0
        (dqn, r2d2) = read_csv(tmp_path / "report/aggregates.csv")
        assert (dqn["environments"], dqn["seeds"]) == ("2", "5")
        assert float(dqn["IQM"]) < float(r2d2["IQM"])
        across = [
            r for r in read_csv(tmp_path / "report/comparisons.csv") if "all" in r["environment"]
        ]
        assert [row["verdict"] for row in across] == ["r2d2 is better"]
        page = (tmp_path / "report/index.html").read_text()
        assert "0 to 1 is A-v0 0 to 4, B-v0 50 to 120" in page

    def test_thresholds(self, rlrun: Command, tmp_path: Path) -> None:
        two_settings(tmp_path / "runs")
        rlrun("report", "runs", "--threshold", "160")
        dqn, r2d2 = read_csv(tmp_path / "runs/report/efficiency.csv")
        assert (dqn["arrived"], dqn["median steps"]) == ("2", "inf")
        assert (r2d2["arrived"], r2d2["median steps"]) == ("5", "666.0")

    def test_an_earlier_report_is_replaced(
        self,
        rlrun: Command,
        tmp_path: Path,
    ) -> None:
        two_settings(tmp_path / "runs")
        rlrun("report", "runs")
        (tmp_path / "runs/report/mine.csv").write_text("kept")
        assert (tmp_path / "runs/report/sensitivity.csv").exists()
        shutil.rmtree(tmp_path / "runs/r2d2")
        assert rlrun("report", "runs").code == 0
        assert not (tmp_path / "runs/report/sensitivity.csv").exists()
        assert (tmp_path / "runs/report/mine.csv").exists()

    @pytest.mark.parametrize("earlier", [False, True])
    def test_an_interrupted_report_can_be_written_again(
        self, rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
    ) -> None:
        """The page is replaced last, so that it is never of other numbers than its tables."""
        two_settings(tmp_path / "runs")
        page = tmp_path / "runs/report/index.html"
        if earlier:
            rlrun("report", "runs")
        before = page.read_bytes() if earlier else b""
        real, left = write.replace_file, iter([1, 1, 1])

        def killed(path: Path, content: bytes) -> None:
            if next(left, None) is None:
                path.with_name(f".tmp_{path.name}").write_bytes(content[:10])
                raise KeyboardInterrupt
            real(path, content)

        monkeypatch.setattr(write, "replace_file", killed)
        assert rlrun("report", "runs").code != 0
        assert page.read_bytes() == before if earlier else b"interrupted" in page.read_bytes()
        assert len(os.listdir(tmp_path / "runs/report")) >= 3
        monkeypatch.setattr(write, "replace_file", real)
        assert rlrun("report", "runs").code == 0
        assert "r2d2 is better" in page.read_text()
        assert not [name for name in os.listdir(tmp_path / "runs/report") if name.startswith(".")]

    def test_no_report_is_written_over_one_on_other_runs(
        self, rlrun: Command, tmp_path: Path
    ) -> None:
        """It goes into the directory that it is on; of several or a glob here, with a number."""
        two_settings(tmp_path / "runs")
        where = {}
        for words in ("runs", "runs/dqn", "runs/*", "runs/dqn runs/r2d2", "runs/r2d2 runs/dqn"):
            for _ in range(2):
                where[words] = rlrun("report", *words.split()).out.splitlines()[-1]
        places = ["runs/report", "runs/dqn/report", "report", "report-2", "report-2"]
        assert [*where.values()] == [f"report: {place}/index.html" for place in places]
        done = rlrun("report", "runs/r2d2", "--out", "report")
        assert done.code == 2
        assert "holds a report on other runs" in done.err
        (tmp_path / "runs").rename(tmp_path / "moved")
        assert rlrun("report", "moved").out.endswith("report: moved/report/index.html\n")

    def test_a_directory_of_other_files_is_not(
        self,
        rlrun: Command,
        tmp_path: Path,
    ) -> None:
        two_settings(tmp_path / "runs")
        (tmp_path / "out").mkdir()
        (tmp_path / "out/index.html").write_text("my own page")
        done = rlrun("report", "runs", "--out", "out")
        assert (done.code, done.out) == (2, "")
        assert os.listdir(tmp_path / "out") == ["index.html"]

    @pytest.mark.parametrize(
        ("argv", "text"),
        [
            (["nowhere"], "DIR = nowhere: no such directory"),
            (["runs", "--score", "best"], "--score = best: is no score"),
            (["runs", "--reference", "A=1"], "--reference = A=1: is no scale"),
            (
                ["runs", "--reference", "Cart=0:1"],
                "--reference = Cart=0:1: no such environment; Ca",
            ),
            (["runs", "--baseline", "sac"], "--baseline = sac: is part of 0 settings"),
            (["runs", "--threshold", "nan"], "nan is not a finite number"),
            ([], "the following arguments are required: DIR"),
        ],
    )
    def test_misuse_writes_nothing(
        self,
        rlrun: Command,
        tmp_path: Path,
        argv: list[str],
        text: str,
    ) -> None:
        two_settings(tmp_path / "runs", seeds=1)
        done = rlrun("report", *argv)
        assert (done.code, done.out) == (2, "")
        assert text in done.err
        assert not (tmp_path / "runs/report").exists()

    def test_hostile_names_are_escaped(self, rlrun: Command, tmp_path: Path) -> None:
        hostile_runs(tmp_path)
        assert rlrun("report", "runs", "--out", "out").code == 0
        page = (tmp_path / "out/index.html").read_text()
        assert "<script" not in page
        assert "<img" not in page
        assert html.escape(HOSTILE, quote=False)[:20] in page
        markdown = (tmp_path / "out/report.md").read_text()
        assert "<script" not in markdown


def hostile_runs(tmp_path: Path) -> None:
    for i, name in enumerate((HOSTILE, "_legend", "=1+1")):
        record = {"exact_reason": HOSTILE, "backend": HOSTILE, "status": "done"}
        forge_seeds(
            tmp_path / f"runs/{i}<b>", [1.0, 2.0, 3.0, 4.0, 5.0 + i], policy__name=name,
            policy__lr=i, env__id=f"rlrun/<i>{HOSTILE[:40]}", record=record,
        )  # fmt: skip


def _same(shown: str, exact: str) -> bool:
    """Whether a number on the page is a number of the CSV, in four digits."""
    try:
        return show_cell(float(exact)) == show_cell(float(shown))
    except ValueError:
        return False
