"""Figures: small SVG with texts, PNG, names that are no formulas, no clashes on a page."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from rlrun.reports.contents import build_document
from rlrun.reports.figures import INK, inline_svg, parallel_figure
from rlrun.reports.findings import Findings
from rlrun.reports.groups import group_runs
from rlrun.reports.runs import read_runs
from rlrun.reports.sensitivity import effects
from tests.reports.forge import forge
from tests.reports.test_report import HOSTILE, hostile_runs

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("figures")
    hostile_runs(path)
    return build_document(Findings(read_runs([str(path)]), "final", threshold=3.0), "title", {})


def test_what_is_drawn(document) -> None:
    names = [picture.name for picture in document.pictures]
    curves = ["figure_curves_steps", "figure_curves_wall"]
    assert names == ["figure_scores", *curves, "figure_effects"]
    assert all(picture.png.startswith(b"\x89PNG") for picture in document.pictures)


def test_texts_stay_texts(document) -> None:
    """A legend shows names with _ and $; XML in a name is text."""
    for picture in document.pictures:
        assert len(picture.svg) < 100_000
        root = ET.fromstring(picture.svg)
        texts = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text")]
        if "curves" in picture.name:
            shown = "|".join(texts)
            assert HOSTILE[:30] in shown
            assert "_legend" in shown


def test_parallel_coordinates(tmp_path: Path) -> None:
    for lr in (1, 2):
        for n in (1, 2):
            forge(tmp_path / f"{lr}{n}", policy__lr=lr, policy__n=n, returns=(float(lr + n),))
    groups = group_runs(read_runs([str(tmp_path)]))
    (picture,) = parallel_figure(groups, effects(groups), name="p", title="t", label="score")
    assert {"lr", "n", "1", "2"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", picture.svg))


def test_on_a_page(document) -> None:
    ids: list[str] = []
    for picture in document.pictures:
        svg = inline_svg(picture)
        root = ET.fromstring(svg)
        assert "width" not in root.attrib
        assert "viewBox" in root.attrib
        assert INK not in svg
        assert "#ffffff" in picture.svg, "a file has its own paper"
        assert "#ffffff" not in svg
        assert "<style" not in svg
        found = re.findall(r'\bid="([^"]+)"', svg)
        used = re.findall(r'(?:url\(#|href="#)([^")]+)', svg)
        assert set(used) <= set(found)
        ids += found
    assert len(ids) == len(set(ids))
