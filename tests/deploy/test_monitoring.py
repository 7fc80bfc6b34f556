"""Alert rules fire when they should, and the dashboard asks for metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.server.metrics.test_reference import described

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARD = DEPLOY / "grafana" / "hotdelta.json"
# Those of prometheus_client itself, which docs/metrics.md only mentions.
OF_PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_start_time_seconds"}
_METRIC = re.compile(r"\b(?:hotdelta|process|python)_\w+")


def promtool(*arguments: str, directory: Path = PROMETHEUS) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: it is in Debian's package prometheus (make packages)")
    done = subprocess.run(
        [program, *arguments], cwd=directory, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def known_metrics() -> set[str]:
    """As they are asked for: of a histogram its buckets, its sum and its count."""
    described_names = {*described("Server"), *described("Trainer"), "hotdelta_build_info", *OF_PROCESS}
    parts = {f"{name}_{part}" for name in described_names for part in ("bucket", "sum", "count")}
    return described_names | parts


def panels() -> list[dict[str, Any]]:
    document = json.loads(DASHBOARD.read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    document = json.loads(DASHBOARD.read_text())
    of_panels = [target["expr"] for panel in panels() for target in panel["targets"]]
    return of_panels + [item["expr"] for item in document["annotations"]["list"]]


def test_every_alert_fires_when_it_should_and_only_then() -> None:
    promtool("test", "rules", "alerts_test.yml")


def test_every_alert_has_a_test() -> None:
    alerts = re.findall(r"alert: (\w+)", (PROMETHEUS / "alerts.yml").read_text())
    tested = set(re.findall(r"alertname: (\w+)", (PROMETHEUS / "alerts_test.yml").read_text()))

    assert len(alerts) > 10
    assert set(alerts) == tested


def test_prometheus_takes_its_configuration() -> None:
    promtool("check", "config", "prometheus.yml")


def test_alerts_and_dashboard_ask_for_metrics_that_exist() -> None:
    rules = re.sub(
        r"^ *(?:- )?(?:alert|summary|description|name):.*$",
        "",
        (PROMETHEUS / "alerts.yml").read_text(),
        flags=re.MULTILINE,
    )
    asked = {name for text in (rules, *expressions()) for name in _METRIC.findall(text)}

    assert len(asked) > 30
    assert asked <= known_metrics()


def test_prometheus_understands_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"dashboard:{number}", "expr": re.sub(r"\$__(rate_)?interval", "1m", expression)}
        for number, expression in enumerate(expressions())
    ]
    # JSON is YAML.
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))

    promtool("check", "rules", "rules.yml", directory=tmp_path)


def test_panels_lie_beside_each_other_and_have_a_name() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert panel["title"]
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
    identities = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(identities) == len(set(identities))
