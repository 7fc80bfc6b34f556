"""How what was counted is written for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from hotdelta.figures import Histogram

Labels = Sequence[str]


def counter(
    name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, float]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def gauge(name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def histogram(
    name: str, text: str, labels: Labels, values: Iterable[tuple[Labels, Histogram]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    for label_values, counted in values:
        read = counted.read()
        ends = [*map(floatToGoString, read.bounds), "+Inf"]
        family.add_metric(label_values, list(zip(ends, accumulate(read.counts), strict=True)), read.sum)
    return family
