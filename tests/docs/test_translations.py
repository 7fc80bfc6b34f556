"""The Chinese pages have the programs, figures, sections and links of the English ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of

PAGES = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")

_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def translation_of(page: Path) -> Path:
    return page.with_suffix(".zh.md")


def prose_of(page: Path) -> str:
    return _FENCED.sub("", page.read_text())


def links_of(page: Path) -> list[str]:
    """Where it leads to, anchors aside, which are headings; a page and its translation are one."""
    return sorted(link.replace(".zh.md", ".md") for link in _LINK.findall(prose_of(page)))


def table_rows_of(page: Path) -> list[list[str]]:
    """The figures of each row of its tables."""
    rows = re.findall(r"^\|.*\|$", prose_of(page), re.MULTILINE)
    return [sorted(re.findall(r"\d[\d,.]*\d|\d", row)) for row in rows]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_are_those_of_the_english_page(page: Path) -> None:
    theirs = [(block.info, block.text) for block in blocks_of(translation_of(page))]

    assert theirs == [(block.info, block.text) for block in blocks_of(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sections_are_those_of_the_english_page(page: Path) -> None:
    levels = [re.findall(r"^#+(?= )", prose_of(each), re.MULTILINE) for each in (page, translation_of(page))]

    assert levels[0] == levels[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_in_tables_are_those_of_the_english_page(page: Path) -> None:
    assert table_rows_of(translation_of(page)) == table_rows_of(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_are_those_of_the_english_page(page: Path) -> None:
    assert links_of(translation_of(page)) == links_of(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_translation_lead_somewhere(page: Path) -> None:
    links = [link for link in _LINK.findall(prose_of(translation_of(page))) if "://" not in link]

    assert [link for link in links if not (page.parent / link).exists()] == []
