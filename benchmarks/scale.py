"""What a thousand replicas ask of one store in a day, what that costs, and how fresh they are: a simulation.

`python -m benchmarks.scale [--replicas 1000] [--hours 24] [--seed 1]`: one trainer commits a delta a second; replicas
are slow and restart, and in one day the store goes away twice. What is assumed of store and network is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks._chart import Bar, Group, write_bars
from benchmarks._fleet_simulation import DAY_SECONDS, Deployment, Outcome, Prices, Watching, simulate
from benchmarks.report import Figure, print_report

# What S3 promises for one prefix.
READS_A_SECOND = 5_500
HOUR_SECONDS = 3_600
OUTAGE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    watching: Watching
    poll_seconds: float


CASES = (
    Case("hint_200ms", Watching.HINT, 0.2),
    Case("hint_1s", Watching.HINT, 1.0),
    Case("hint_5s", Watching.HINT, 5.0),
    Case("hint_then_list_1s", Watching.HINT_THEN_LIST, 1.0),
    Case("list_1s", Watching.LISTING, 1.0),
)


@dataclass(frozen=True, slots=True)
class Day:
    """What a case came to; sums are of a whole day, however long the simulation was."""

    case: Case
    outcome: Outcome
    per_day: float

    @property
    def dollars(self) -> float:
        return self.outcome.dollars(Prices()) * self.per_day

    def figures(self) -> Mapping[str, float]:
        return {
            "served_p50_s": self.outcome.served_p50_seconds,
            "served_p99_s": self.outcome.served_p99_seconds,
            "all_p50_s": self.outcome.all_p50_seconds,
            "all_p99_s": self.outcome.all_p99_seconds,
            "million_reads_a_day": self.outcome.reads * self.per_day / 1e6,
            "million_lists_a_day": self.outcome.lists * self.per_day / 1e6,
            "terabytes_a_day": self.outcome.fetched_bytes * self.per_day / 1e12,
            "dollars_a_day": self.dollars,
            "reads_in_fullest_second": self.outcome.fullest_second,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1_000)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chart", type=Path, help="write the picture of docs/scale.md there")
    options = parser.parse_args()
    seconds = options.hours * HOUR_SECONDS
    quiet = Deployment(replicas=options.replicas, seconds=seconds)
    days = [
        Day(
            case,
            simulate(
                replace(quiet, watching=case.watching, poll_seconds=case.poll_seconds), seed=options.seed
            ),
            DAY_SECONDS / seconds,
        )
        for case in CASES
    ]
    outages = ((seconds / 3, seconds / 3 + 60), (seconds * 2 / 3, seconds * 2 / 3 + OUTAGE_SECONDS))
    broken = simulate(replace(quiet, poll_seconds=1.0, outages=outages), seed=options.seed)
    _print_days(f"{options.replicas} replicas, a delta a second, {options.hours:g} hours", days, quiet)
    if options.chart is not None:
        _draw(options.chart, options.replicas, days)
    by_name = {day.case.name: day for day in days}
    hint, listing = by_name["hint_1s"], by_name["list_1s"]
    print_report(
        f"What to remember; the outages of the store are two, {OUTAGE_SECONDS:g} s the longer one",
        [
            Figure("hint_200ms_served_p99_s", by_name["hint_200ms"].outcome.served_p99_seconds),
            Figure("hint_1s_served_p99_s", hint.outcome.served_p99_seconds),
            Figure("hint_1s_all_p99_s", hint.outcome.all_p99_seconds),
            Figure("hint_1s_dollars_a_day", hint.dollars),
            Figure("listing_over_hint_dollars", listing.dollars / hint.dollars),
            Figure(
                "replicas_that_fill_a_prefix",
                options.replicas * READS_A_SECOND / hint.outcome.fullest_second,
            ),
            Figure("outage_worst_s", broken.served_worst_seconds),
            Figure("outage_behind_at_end", broken.behind_at_end, "at most 0"),
        ],
    )


def _print_days(title: str, days: Sequence[Day], deployment: Deployment) -> None:
    print(f"\n{title}")
    for line in _assumptions(deployment):
        print(f"  {line}")
    print(f"\n{'':<26}" + "".join(f"{day.case.name:>20}" for day in days))
    for name in days[0].figures():
        print(f"  {name:<24}" + "".join(f"{day.figures()[name]:>20.4g}" for day in days))


def _draw(path: Path, replicas: int, days: Sequence[Day]) -> None:
    def bars(name: str, unit: str) -> Sequence[Bar]:
        return [
            Bar(
                f"{day.case.watching}, every {day.case.poll_seconds:g} s",
                value := day.figures()[name],
                f"{value:,.3g} {unit}",
                is_ours=day.case.watching is Watching.HINT,
            )
            for day in days
        ]

    write_bars(
        path,
        f"{replicas:,} replicas, one store, a delta a second (simulated)",
        [
            Group("requests, dollars a day at list prices", bars("dollars_a_day", "$")),
            Group("from commit to served, 99 of 100", bars("served_p99_s", "s")),
            Group("until the last replica serves it, 99 of 100", bars("all_p99_s", "s")),
        ],
    )


def _assumptions(deployment: Deployment) -> Sequence[str]:
    requests, prices = deployment.requests, Prices()
    a_request = (
        f"a request: {deployment.latency_seconds * 1e3:g} ms in the median (lognormal, spread "
        f"{deployment.latency_spread:g}), then {deployment.bytes_a_second / 1e6:g} MB/s; "
        f"{deployment.slow_share:.0%} of the replicas have {deployment.slow_bytes_a_second / 1e6:g} MB/s"
    )
    a_delta = (
        f"a delta: {requests.bytes_of_delta / 1e6:g} MB in {requests.gets_of_delta} requests; a full: "
        f"{requests.bytes_of_full / 1e9:g} GB in {requests.gets_of_full}, fetched at each restart, "
        f"{deployment.restarts_a_day:g} a day and replica"
    )
    list_prices = (
        f"list prices: {prices.of_1000_reads:g} $ for 1,000 reads, {prices.of_1000_lists_and_puts:g} $ for "
        f"1,000 listings or puts; a prefix of S3 takes {READS_A_SECOND:,} reads a second"
    )
    return [a_request, a_delta, list_prices]


if __name__ == "__main__":
    main()
