"""GET /metrics as a table of values."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient


class Scrape:
    """What was told in one answer: samples by name and labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float | None:
        return self._values.get((name, frozenset(labels.items())))

    def __getitem__(self, name: str) -> float:
        """The only value of this name."""
        (value,) = (value for (found, _), value in self._values.items() if found == name)
        return value

    def labels_of(self, name: str) -> list[Mapping[str, str]]:
        return [dict(labels) for found, labels in self._values if found == name]


def scrape(client: TestClient) -> Scrape:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return Scrape(answer.text)
