"""Labelled requests that every update has to answer well enough, and what that is, as an operator writes it down.

A file of JSON lines: first the limits, then a row and its label in each line. Only reads: loader asks and judges.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hotdelta.errors import ConfigurationError

# Predictions wait while they are asked.
MAX_ROWS = 4096
DEFAULT_SIGNATURE = "serving_default"
_EXAMPLE = '{"max_log_loss": 0.7}, then lines like {"instance": {"user": 7, "item": 3}, "label": 1}'


def _limit(default: float | None, about: str, *, low: float = 0.0, high: float = math.inf) -> Any:
    return field(default=default, metadata={"about": about, "bounds": (low, high)})


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """What an update may make of the answers; None: whatever it likes."""

    max_log_loss: float | None = _limit(None, "of the answers against the labels")
    min_auc: float | None = _limit(None, "area under the curve of the answers against the labels", high=1.0)
    max_change: float | None = _limit(None, "of any answer by one update")
    max_ms: float = _limit(50.0, "the rows that are not asked by then are left out", low=0.1, high=60_000.0)

    @property
    def are_labels_needed(self) -> bool:
        return self.max_log_loss is not None or self.min_auc is not None


@dataclass(frozen=True, slots=True)
class Probe:
    """Columns of rows, by input, and their labels, if they have any. `output` None: the only one there is."""

    path: Path
    limits: ProbeLimits
    columns: Mapping[str, list[Any]]
    labels: list[float]
    rows: int
    line_numbers: list[int]
    signature: str = DEFAULT_SIGNATURE
    output: str | None = None

    @classmethod
    def read(cls, path: Path) -> Probe:
        """Raises ConfigurationError, with the number of the line that is wrong."""
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--probe {path} cannot be read: {error}") from error
        numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
        documents = [
            (f"line {number} of {path}", _parse(f"line {number} of {path}", lines[number - 1]))
            for number in numbers
        ]
        if len(documents) < 2:
            raise ConfigurationError(f"--probe {path} has no limits, or no rows", hint=f"write {_EXAMPLE}")
        if len(documents) - 1 > MAX_ROWS:
            raise ConfigurationError(
                f"--probe {path} has {len(documents) - 1} rows, and predictions wait while they are asked",
                hint=f"choose {MAX_ROWS} or fewer",
            )
        (where, first), *rows = documents
        signature, output = first.pop("signature_name", DEFAULT_SIGNATURE), first.pop("output", None)
        if not isinstance(signature, str) or not isinstance(output, str | None):
            raise ConfigurationError(f"{where}: signature_name and output are texts")
        limits = _limits(where, first)
        columns = _columns(rows)
        labels = _labels(rows, limits)
        return cls(path, limits, columns, labels, len(rows), numbers[1:], signature, output)


def _parse(where: str, line: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(f"{where} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{where} is not an object", hint=f"write {_EXAMPLE}")
    return document


def _limits(where: str, document: Mapping[str, Any]) -> ProbeLimits:
    known = {setting.name: setting for setting in fields(ProbeLimits)}
    for name, value in document.items():
        if name not in known:
            raise ConfigurationError(f"{where} has no limit {name!r}", hint=f"limits: {', '.join(known)}")
        low, high = known[name].metadata["bounds"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            wanted = f"{low:g} or more" if math.isinf(high) else f"a number from {low:g} to {high:g}"
            raise ConfigurationError(f"{where}: {name} is {value!r}", hint=f"give {wanted}")
    limits = ProbeLimits(**document)
    if not limits.are_labels_needed and limits.max_change is None:
        choices = [name for name, setting in known.items() if setting.default is None]
        raise ConfigurationError(f"{where} has no limit", hint=f"give one of {', '.join(choices)}")
    return limits


def _columns(rows: list[tuple[str, dict[str, Any]]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for number, (where, row) in enumerate(rows):
        unknown = row.keys() - {"instance", "label"}
        instance = row.get("instance")
        if unknown or not isinstance(instance, dict):
            problem = (
                f"has an unknown member {min(unknown)!r}"
                if unknown
                else "has no object 'instance' of inputs by name"
            )
            raise ConfigurationError(f"{where} {problem}", hint=f"write {_EXAMPLE}")
        if number and instance.keys() != columns.keys():
            raise ConfigurationError(f"{where} has other inputs than the first row")
        for name, value in instance.items():
            columns.setdefault(name, []).append(value)
    return columns


def _labels(rows: list[tuple[str, dict[str, Any]]], limits: ProbeLimits) -> list[float]:
    if not limits.are_labels_needed:
        return []
    for where, row in rows:
        label = row.get("label")
        if not isinstance(label, int | float) or not 0 <= label <= 1:
            raise ConfigurationError(f"{where} has the label {label!r}", hint="give a number from 0 to 1")
    labels = [float(row["label"]) for _, row in rows]
    if limits.min_auc is not None and len({label >= 0.5 for label in labels}) < 2:
        raise ConfigurationError(
            "min_auc needs labels of both kinds", hint="give rows with the label 0, and rows with the label 1"
        )
    return labels
