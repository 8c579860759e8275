"""The page in headless Chromium, at the widths of a screen and of a phone."""

from pathlib import Path

import pytest

from rlrun.reports.contents import build_document
from rlrun.reports.findings import Findings
from rlrun.reports.runs import read_runs
from rlrun.reports.write import write_report
from tests.reports.browser import PROGRAM, Browser
from tests.reports.forge import HOSTILE, hostile_runs

pytest.importorskip("matplotlib")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(PROGRAM is None, reason="needs chromium")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page")
    hostile_runs(path)
    found = Findings(read_runs([str(path)]), "final")
    write_report(build_document(found, f"Report on {HOSTILE}", {}), path / "out", "0")
    return path / "out/index.html"


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 400])
def test_page(browser: Browser, page: Path, width: int, dark: bool) -> None:
    found = browser.open(page, width, dark=dark)
    assert found["width"] == width
    assert found["scroll"] <= width, "no scrolling sideways"
    assert found["errors"] == []
    assert found["requests"] == []
    assert found["images"] == page.read_text().count("<svg") > 3
    assert (found["empty"], found["broken"]) == (0, 0)
    assert found["smallest"] > 5, "texts of figures can be read"
    assert (found["scripts"], found["fired"]) == (0, None)
    assert HOSTILE[:60] in found["text"]
