"""A day of a fleet in virtual time: one trainer, many replicas, one store. Pure: a deployment in, figures out.

No clock and no store is asked. A round is what every replica does until it has applied what it found: wait for its next
poll behind the next delta that it lacks, list, fetch, apply. Replicas do not know of each other, so rounds are computed
for all of them at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Counts = NDArray[np.int64]

DAY_SECONDS = 86_400.0
# Seconds from `begin` to `begin + step`, in bins that grow by 2 %: percentiles are right to 1 %.
_FINEST_SECONDS = 1e-3
_BIN_GROWTH = 1.02
_BINS = 1_200
# A replica that starts is ready when it has caught up to so many deltas.
_READY_WITHIN = 2


class Watching(StrEnum):
    """How a replica learns that there is something new.

    A hint is an object that names the newest commit, and so, since a run counts its commits, those before it; or it
    only says when to list.
    """

    HINT = "hint"
    HINT_THEN_LIST = "hint, then list"
    LISTING = "list"


@dataclass(frozen=True, slots=True)
class Requests:
    """What one replica asks of the store for one delta that it found, polls and listings left out."""

    gets_of_delta: int = 3
    bytes_of_delta: int = 1_500_000
    gets_of_full: int = 1_300
    bytes_of_full: int = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """List prices of S3 Standard, United States; traffic inside a region costs nothing."""

    of_1000_reads: float = 0.0004
    of_1000_lists_and_puts: float = 0.005


@dataclass(frozen=True, slots=True)
class Deployment:
    """Who takes part, and what goes wrong. Times in seconds."""

    replicas: int = 1_000
    seconds: float = DAY_SECONDS
    delta_seconds: float = 1.0
    full_seconds: float = 3_600.0
    watching: Watching = Watching.HINT
    poll_seconds: float = 0.2
    listing_seconds: float = 30.0
    requests: Requests = field(default_factory=Requests)
    # A request to the store: the median and how far it spreads (of the logarithm).
    latency_seconds: float = 0.025
    latency_spread: float = 0.6
    bytes_a_second: float = 100e6
    slow_share: float = 0.01
    slow_bytes_a_second: float = 5e6
    fetches_at_once: int = 8
    apply_seconds: float = 0.012
    # The store is away: when, and for how long. Whoever meets it tries again, later and later up to `backoff_seconds`.
    outages: tuple[tuple[float, float], ...] = ()
    backoff_seconds: float = 10.0
    # Each replica is killed that often a day, is away for so long, and begins with the newest full.
    restarts_a_day: float = 1.0
    restart_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the day was like. Seconds are those from a commit to the moment when a replica that was there serves it."""

    served_p50_seconds: float
    served_p99_seconds: float
    served_worst_seconds: float
    # Until the last replica has it, slow ones and those that were not ready then left out.
    all_p50_seconds: float
    all_p99_seconds: float
    reads: float
    lists: float
    puts: float
    fetched_bytes: float
    fullest_second: float
    behind_at_end: int

    def dollars(self, prices: Prices) -> float:
        return (
            self.reads * prices.of_1000_reads + (self.lists + self.puts) * prices.of_1000_lists_and_puts
        ) / 1_000


class Histogram:
    """How often something took how long, by the logarithm."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, np.int64)
        self.worst = 0.0

    def add(self, seconds: Times) -> None:
        if seconds.size:
            bins = np.log(np.maximum(seconds, _FINEST_SECONDS) / _FINEST_SECONDS) / np.log(_BIN_GROWTH)
            self._counts += np.bincount(np.minimum(bins.astype(np.int64), _BINS - 1), minlength=_BINS)
            self.worst = max(self.worst, float(seconds.max()))

    def quantile(self, share: float) -> float:
        total = int(self._counts.sum())
        if total == 0:
            return 0.0
        place = int(np.searchsorted(np.cumsum(self._counts), share * total))
        return float(_FINEST_SECONDS * _BIN_GROWTH ** (place + 0.5))


def simulate(deployment: Deployment, *, seed: int = 1) -> Outcome:
    """The same seed, the same day."""
    random = np.random.default_rng(seed)
    committed = np.arange(deployment.delta_seconds, deployment.seconds, deployment.delta_seconds)
    published = _publish(deployment, committed, random)
    return _Fleet(deployment, committed, published, random).run()


def _publish(deployment: Deployment, committed: Times, random: np.random.Generator) -> Times:
    """When each delta can be found: in order, one after the other, index and data at once, then manifest, then head."""
    latencies = _latencies(deployment, random, (committed.size, 4))
    upload = latencies[:, :2].max(axis=1) + latencies[:, 2] + latencies[:, 3]
    upload += deployment.requests.bytes_of_delta / deployment.bytes_a_second
    published = np.empty_like(committed)
    free = 0.0
    for number, (commit, seconds) in enumerate(zip(committed, upload, strict=True)):
        begin = max(commit, free)
        free = begin + seconds
        for away, back in deployment.outages:
            if begin < back and free > away:
                begin = back + random.uniform(0, deployment.backoff_seconds)
                free = begin + seconds
        published[number] = free
    return published


def _latencies(deployment: Deployment, random: np.random.Generator, shape: tuple[int, ...]) -> Times:
    return random.lognormal(np.log(deployment.latency_seconds), deployment.latency_spread, shape)


class _Fleet:
    """All replicas, an array for each thing that is known of them. `have` counts the deltas that a replica serves."""

    def __init__(
        self, deployment: Deployment, committed: Times, published: Times, random: np.random.Generator
    ) -> None:
        self._deployment = deployment
        self._committed = committed
        self._published = published
        self._random = random
        replicas = deployment.replicas
        self._have = np.zeros(replicas, np.int64)
        self._free = np.zeros(replicas)
        self._phase = random.uniform(0, deployment.poll_seconds, replicas)
        self._speed = np.full(replicas, deployment.bytes_a_second)
        self._speed[: round(replicas * deployment.slow_share)] = deployment.slow_bytes_a_second
        self._is_quick = self._speed == deployment.bytes_a_second
        mean = deployment.restarts_a_day * deployment.seconds / DAY_SECONDS
        self._crashes = [
            np.sort(random.uniform(0, deployment.seconds, count)) for count in random.poisson(mean, replicas)
        ]
        self._next_crash = np.array([times[0] if times.size else np.inf for times in self._crashes])
        self._crashed = np.zeros(replicas, np.int64)
        # When it was ready: what was committed before is not late when it comes to it.
        self._there_since = np.zeros(replicas)
        self._busy = np.zeros(replicas)
        self._served = Histogram()
        self._last_of_all = np.zeros(committed.size)
        self._by_second = np.zeros(int(deployment.seconds) + 3_600, np.int64)
        self._gets = 0
        self._finds = 0
        self._bytes = 0.0

    def run(self) -> Outcome:
        awake = np.arange(self._deployment.replicas)
        while awake.size:
            self._round(awake)
            awake = awake[self._have[awake] < self._committed.size]
        return self._outcome()

    def _round(self, who: Counts) -> None:
        deployment = self._deployment
        self._restart(who[self._free[who] >= self._next_crash[who]])
        found_at = self._poll(who)
        behind = np.searchsorted(self._published, found_at, side="right") - self._have[who]
        seconds_of_each = (
            _latencies(deployment, self._random, (2, who.size)).sum(axis=0)
            / np.clip(behind, 1, deployment.fetches_at_once)
            + deployment.requests.bytes_of_delta / self._speed[who]
            + deployment.apply_seconds
        )
        self._note(who, found_at, behind, seconds_of_each)
        end = found_at + behind * seconds_of_each
        self._busy[who] += end - found_at
        self._free[who] = end
        is_ready = np.isinf(self._there_since[who]) & (behind <= _READY_WITHIN)
        self._there_since[who[is_ready]] = end[is_ready]
        self._have[who] += behind
        self._finds += who.size
        self._gets += int(behind.sum()) * deployment.requests.gets_of_delta
        self._bytes += float(behind.sum()) * deployment.requests.bytes_of_delta
        np.add.at(
            self._by_second,
            np.minimum(found_at.astype(np.int64), self._by_second.size - 1),
            1 + behind * deployment.requests.gets_of_delta,
        )

    def _restart(self, who: Counts) -> None:
        """Those begin anew: with the newest full, from which deltas lead on."""
        deployment = self._deployment
        if not who.size:
            return
        begin = self._next_crash[who] + deployment.restart_seconds
        fulls = np.floor(begin / deployment.full_seconds) * deployment.full_seconds
        self._free[who] = np.maximum(
            self._free[who], begin + deployment.requests.bytes_of_full / self._speed[who]
        )
        self._there_since[who] = np.inf
        self._have[who] = np.minimum(np.searchsorted(self._committed, fulls), self._committed.size - 1)
        self._gets += who.size * deployment.requests.gets_of_full
        self._bytes += float(who.size) * deployment.requests.bytes_of_full
        for replica in who:
            self._crashed[replica] += 1
            times = self._crashes[replica]
            count = self._crashed[replica]
            self._next_crash[replica] = times[count] if count < times.size else np.inf

    def _poll(self, who: Counts) -> Times:
        """When each has heard that there is something new, and what: the poll that sees it, and the listing."""
        deployment = self._deployment
        ready = np.maximum(self._free[who], self._published[self._have[who]])
        polls = np.ceil((ready - self._phase[who]) / deployment.poll_seconds)
        at = self._phase[who] + polls * deployment.poll_seconds
        for away, back in deployment.outages:
            meets = (at >= away) & (at < back)
            at[meets] = back + self._random.uniform(0, deployment.backoff_seconds, int(meets.sum()))
        requests = 2 if deployment.watching is Watching.HINT_THEN_LIST else 1
        found_at: Times = at + _latencies(deployment, self._random, (requests, who.size)).sum(axis=0)
        return found_at

    def _note(self, who: Counts, found_at: Times, behind: Counts, seconds_of_each: Times) -> None:
        """How long each delta took from its commit; of those that a replica took at once, each has its own time."""
        for depth in range(int(behind.max())):
            has = behind > depth
            deltas = self._have[who[has]] + depth
            served_at = found_at[has] + (depth + 1) * seconds_of_each[has]
            was_there = self._committed[deltas] >= self._there_since[who[has]]
            seconds = served_at - self._committed[deltas]
            self._served.add(seconds[was_there])
            counted = self._is_quick[who[has]] & was_there
            np.maximum.at(self._last_of_all, deltas[counted], seconds[counted])

    def _outcome(self) -> Outcome:
        deployment = self._deployment
        last = np.sort(self._last_of_all)
        idle = np.maximum(deployment.seconds - self._busy, 0.0)
        polls = float((idle / deployment.poll_seconds).sum())
        listings = float((idle / deployment.listing_seconds).sum())
        lists = {
            Watching.HINT: listings,
            Watching.HINT_THEN_LIST: listings + self._finds,
            Watching.LISTING: polls,
        }
        polls_a_second = deployment.replicas / deployment.poll_seconds
        return Outcome(
            served_p50_seconds=self._served.quantile(0.50),
            served_p99_seconds=self._served.quantile(0.99),
            served_worst_seconds=self._served.worst,
            all_p50_seconds=float(last[last.size // 2]),
            all_p99_seconds=float(last[int(last.size * 0.99)]),
            reads=self._gets + (0.0 if deployment.watching is Watching.LISTING else polls),
            lists=lists[deployment.watching],
            puts=4.0 * self._committed.size,
            fetched_bytes=self._bytes,
            fullest_second=float(self._by_second.max()) + polls_a_second,
            behind_at_end=int((self._have < self._committed.size).sum()),
        )
