"""docs/metrics.md names every metric that there is, with its labels, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.server.conftest import Serve
from tests.server.metrics.scrape import scrape

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
_ROW = re.compile(r"^\| (?P<names>`hotdelta_.*?) \|(?P<labels>[^|]*)\|", re.MULTILINE)


def described(section: str) -> dict[str, set[str]]:
    """Metrics of a section of the page, with their labels."""
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return {
        name: set(filter(None, row["labels"].strip().split(", ")))
        for row in _ROW.finditer(text)
        for name in re.findall(r"`(\w+)`", row["names"])
    }


def test_the_page_names_every_metric_of_a_server_and_no_other(serve: Serve) -> None:
    families = scrape(serve(front_ends=1)).families.values()
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in families
        if family.name.startswith("hotdelta_")
    }

    assert set(described("Server")) == names - {"hotdelta_build_info"}


def test_the_page_names_the_labels_of_each_metric(serve: Serve) -> None:
    client = serve(front_ends=1)
    client.post("/predict", json={"instances": [[1, 2]]})
    told = scrape(client)

    for family in told.families.values():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        for sample in family.samples:
            if name in described("Server"):
                assert set(sample.labels) - {"le"} == described("Server")[name], name
