"""A report as sections of sentences, tables and figures; Markdown of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from rlrun.reports.figures import Picture
from rlrun.reports.tables import Table, markdown, markdown_text


@dataclass(frozen=True)
class Section:
    """Paragraphs, then tables, then figures under a title."""

    title: str
    text: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Name of the section in links."""
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Document:
    """The whole report. ``text``: what it says in short. ``data``: tables that are only CSV."""

    title: str
    text: list[str]
    sections: list[Section]
    data: list[Table] = field(default_factory=list)

    @property
    def tables(self) -> list[Table]:
        """Every table, in order."""
        return [*(table for part in self.sections for table in part.tables), *self.data]

    @property
    def pictures(self) -> list[Picture]:
        """Every figure, in order."""
        return [picture for part in self.sections for picture in part.pictures]


def document_markdown(document: Document) -> str:
    """Return the report in Markdown; figures and tables are files beside it."""
    return "\n".join(_markdown(document))


def _markdown(document: Document) -> Iterator[str]:
    yield f"# {markdown_text(document.title)}\n"
    for text in document.text:
        yield f"{markdown_text(text)}\n"
    for part in document.sections:
        yield f"## {markdown_text(part.title)}\n"
        for text in part.text:
            yield f"{markdown_text(text)}\n"
        for table in part.tables:
            yield markdown(table)
        for picture in part.pictures:
            yield f"![{markdown_text(picture.title)}]({picture.name}.svg)\n"
    yield "All digits, and every evaluation: the CSV files in this directory."
