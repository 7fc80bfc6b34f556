"""What a table without a fixed vocabulary costs, in training and in serving, against a fixed one.

`python -m benchmarks.dynamic [--rounds 20] [--seconds 3] [--keys 2000000]`: Keras trainers, the command `server` as
processes on loopback, asked in turn, and memory as the resident set of processes that do nothing else. `--keys 20000
--rounds 1 --seconds 1` is a quick look.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
import psutil
import tensorflow as tf

import hotdelta.keras as hk
from benchmarks._http_load import Load
from benchmarks.predict import (
    DELTA_ROWS,
    FEW,
    MANY,
    ROWS,
    Server,
    median_load,
    require_equal_answers,
    told,
    updates,
)
from benchmarks.report import Figure, print_report
from benchmarks.served_table import KeyedRanker, Ranker, TrainerProcess
from benchmarks.training import (
    BATCH,
    COLUMNS,
    IDS,
    ROUND_STEPS,
    WARM_UP_STEPS,
    ZIPF_EXPONENT,
    Timed,
    batches,
    build,
    compare_steps,
    model_around,
    progress,
    save_both,
    zipf_ids,
)
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.history.scan import Scanner
from hotdelta.signature_calls import CALLER_THREAD
from hotdelta.tensorflow_internals import make_callable
from hotdelta.train import Chance, MostKeys, SeenTimes, SeenTimesInFilter
from hotdelta.train.keys.index import BUCKETS, KeyIndex
from hotdelta.train.tables.row_values import read_slice

v1 = tf.compat.v1

NEW_SHARE, NEW_SHARE_WHILE_GROWING = 0.01, 0.5
LOOKUPS = {8: 400, 256: 200, 2_048: 40, 20_000: 5}
# A fixed row of 16 floats, and one slot.
ROW_BYTES = 2 * COLUMNS * 4
FEW_KEYS = 2_048
TABLE = "table"
SAVE_SECONDS = 0.5
EVICTION_STEPS = 400


def keys_of(ids: np.ndarray) -> np.ndarray:
    """A key for each id, spread over all int64."""
    return (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


class Stream:
    """Batches of ids with Zipf frequencies, in each of which some were never seen before."""

    def __init__(self, known: int, new_share: float, *, as_input: Callable[[np.ndarray], Any]) -> None:
        self._known = known
        self._next = known
        self._new = round(BATCH * IDS * new_share)
        self._as_input = as_input
        self._random = np.random.default_rng(2)

    def take(self, steps: int) -> tf.data.Dataset:
        ids = zipf_ids(self._known, (steps, BATCH * IDS), seed=self._next)
        ids[:, : self._new] = np.arange(self._next, self._next + steps * self._new).reshape(steps, -1)
        self._next += steps * self._new
        return batches(self._as_input(self._random.permuted(ids, axis=1).reshape(-1, IDS)))


def fixed_subject(keys: int, rounds: int) -> Timed:
    """With a vocabulary that was known beforehand: the new ids have rows already."""
    steps = WARM_UP_STEPS + rounds * ROUND_STEPS
    rows = keys + steps * round(BATCH * IDS * NEW_SHARE)
    return Timed(build(rows), Stream(keys, NEW_SHARE, as_input=lambda ids: ids).take)


def dynamic_subject(keys: int, new_share: float = NEW_SHARE) -> Timed:
    return Timed(dynamic_model(keys), Stream(max(keys, FEW_KEYS), new_share, as_input=keys_of).take)


def dynamic_model(
    keys: int, eviction: Any = None, *, admission: Any = None, room: int | None = None
) -> keras.Model:
    """It has seen so many keys, and there is room for as many again."""
    table = hk.DynamicEmbedding(
        COLUMNS,
        max_rows=2 * (room or keys) + 2_000_000,
        initializer="zeros",
        admission=admission,
        eviction=eviction,
        name=TABLE,
    )
    model = model_around(table, hk.Adagrad(0.05))
    see = tf.function(
        lambda keys: table(keys, training=True), input_signature=[tf.TensorSpec([None], tf.int64)]
    )
    for first in range(0, keys, 1 << 14):
        see(keys_of(np.arange(first, min(keys, first + (1 << 14)))))
    return model


def measure_eviction(rounds: int, keys: int, directory: Path) -> tuple[float, list[str]]:
    """A step that is saved twice a second, with a key that goes for each new one, over one whose keys all stay."""
    seconds, checkpoints = {}, {}
    subjects = {}
    for name, eviction in (("stay", None), ("go", MostKeys(keys))):
        checkpoints[name] = hk.DeltaCheckpoint(
            directory / name, save_secs=None, save_incremental_secs=SAVE_SECONDS, serving_graph=False
        )
        stream = Stream(keys, NEW_SHARE, as_input=keys_of)
        subjects[name] = Timed(dynamic_model(keys, eviction), stream.take, callbacks=(checkpoints[name],))
    for subject in subjects.values():
        subject.run(WARM_UP_STEPS)
    times: dict[str, list[float]] = defaultdict(list)
    for _ in progress("eviction_overhead", rounds):
        for name, subject in subjects.items():
            # Not the median: what a sweep takes is in few of the steps.
            times[name].append(float(np.mean(subject.run(EVICTION_STEPS))))
    rows = {name: subject.model.get_layer(TABLE).counts.numpy()[0] for name, subject in subjects.items()}
    deltas = {name: checkpoint.status.deltas for name, checkpoint in checkpoints.items()}
    for checkpoint in checkpoints.values():
        checkpoint.close()
    if rows["go"] >= rows["stay"]:
        raise SystemExit("no row was dealt again")
    seconds = {name: statistics.median(found) for name, found in times.items()}
    note = (
        f"saved every {SAVE_SECONDS} s: {seconds['stay'] * 1e3:.2f} ms a step when keys stay ({rows['stay']:,} rows, "
        f"{deltas['stay']} deltas), {seconds['go'] * 1e3:.2f} ms when they go ({rows['go']:,} rows, "
        f"{deltas['go']} deltas)"
    )
    return _over(times["go"], times["stay"]), [note]


def _over(one: list[float], other: list[float]) -> float:
    """Of rounds that were run in turn."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def measure_admission(rounds: int, keys: int) -> tuple[list[Figure], list[str]]:
    """A step whose new keys wait, over one in which they get rows at once."""
    policies: dict[str, Any] = {
        "": None,
        "admission_overhead": SeenTimes(3),
        "admission_overhead_filter": SeenTimesInFilter(3, keys=keys),
        "admission_overhead_chance": Chance(0.1),
    }
    subjects = {}
    for name, policy in policies.items():
        model = dynamic_model(0, admission=policy, room=keys)
        model.get_layer(TABLE).assign(keys_of(np.arange(keys)), np.zeros((keys, COLUMNS), np.float32))
        subjects[name] = Timed(model, Stream(keys, NEW_SHARE, as_input=keys_of).take)
        subjects[name].run(WARM_UP_STEPS)
    times: dict[str, list[float]] = defaultdict(list)
    for _ in progress("admission_overhead", rounds):
        for name, subject in subjects.items():
            times[name].append(float(np.median(subject.run(ROUND_STEPS))))
    seconds = {name: statistics.median(found) for name, found in times.items()}
    rows = {name: subject.model.get_layer(TABLE).counts.numpy()[0] for name, subject in subjects.items()}
    if rows["admission_overhead"] >= rows[""]:
        raise SystemExit("no key waits")
    told = ", ".join(f"{name or 'without'} {value * 1e3:.2f}" for name, value in seconds.items())
    figures = [Figure(name, _over(found, times[""])) for name, found in times.items() if name]
    return figures, [f"admission, ms a step: {told}"]


def measure_growing(steps: int) -> tuple[float, list[str]]:
    """The longest step over the median while half of each batch is new, from the first key on."""
    subject = dynamic_subject(0, NEW_SHARE_WHILE_GROWING)
    subject.run(WARM_UP_STEPS)
    times = subject.run(steps)
    rows = subject.model.get_layer(TABLE).counts.numpy()[0]
    median, p99, worst = np.percentile(times, (50, 99, 100)) * 1e3
    note = f"from 0 to {rows:,} keys: median step {median:.2f} ms, p99 {p99:.2f} ms, longest {worst:.1f} ms"
    return worst / median, [note]


def measure_lookups(rounds: int, model: keras.Model, keys: int) -> dict[str, float]:
    """Microseconds of finding rows by keys, called as serving calls, net of a call that does nothing."""
    with LookUps(model, keys) as calls:
        found: dict[str, float] = {}
        for count in (count for count in LOOKUPS if count <= keys):
            times: dict[str, list[float]] = defaultdict(list)
            for turn in progress(f"looking {count:,} keys up", rounds):
                asked = calls.some_keys(count, seed=turn)
                for name, call in calls.by_name.items():
                    times[name].append(_call_us(call, asked))
            nothing = statistics.median(times.pop("nothing"))
            found |= {f"{name}_{count}": statistics.median(us) - nothing for name, us in times.items()}
    return found


def _call_us(call: Callable[..., Any], asked: list[np.ndarray]) -> float:
    call(asked[0])
    start = time.perf_counter()
    for keys in asked:
        call(keys)
    return (time.perf_counter() - start) / len(asked) * 1e6


class LookUps:
    """A Session with the index of a trained table and a MutableHashTable that has the same keys."""

    def __init__(self, model: keras.Model, keys: int) -> None:
        self._keys = keys
        table = model.get_layer(TABLE).table
        index, counts = table.index.buckets, table.counts.numpy()
        buckets = read_slice(index, 0, int(counts[BUCKETS]))
        graph = tf.Graph()
        self._session = v1.Session(graph=graph)
        with graph.as_default():
            given = v1.placeholder(tf.int64, buckets.shape)
            variables = [v1.Variable(value, use_resource=True) for value in (tf.identity(given), counts)]
            self._session.run([variable.initializer for variable in variables], {given: buckets})
            find = KeyIndex(*variables, growth=table.index.growth).find
            others = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
            self._session.run(others.insert(keys_of(np.arange(keys)), np.arange(1, keys + 1)))
            self.by_name = {
                name: self._callable(function)
                for name, function in (
                    ("nothing", tf.identity),
                    ("lookup_us", find),
                    ("mutable_hash_table_us", others.lookup),
                )
            }

    def __enter__(self) -> Self:
        asked = self.some_keys(min(self._keys, 256), seed=0)[0]
        ours, others = (self.by_name[name](asked)[0] for name in ("lookup_us", "mutable_hash_table_us"))
        if not np.array_equal(ours, others):
            raise SystemExit("the index does not say what MutableHashTable says")
        return self

    def __exit__(self, *exception: object) -> None:
        self._session.close()

    def some_keys(self, count: int, *, seed: int) -> list[np.ndarray]:
        random = np.random.default_rng(seed)
        return [
            keys_of(random.integers(0, self._keys, count)) for _ in range(LOOKUPS.get(count, max(LOOKUPS)))
        ]

    def _callable(self, function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[..., Any]:
        asked = v1.placeholder(tf.int64, [None])
        answer = tf.identity(function(asked))
        return make_callable(self._session, feeds=[asked.name], fetches=[answer.name], pool=CALLER_THREAD)


def measure_memory(keys: int, directory: Path) -> tuple[float, list[str]]:
    """Resident bytes per key over those of a fixed row and its slot."""
    found = {}
    for number, kind in enumerate(("dynamic", "fixed")):
        sizes = []
        for count in (FEW_KEYS, keys):
            print(f"\r  memory of a {kind} table of {count:,} rows ...", end="", flush=True)
            # A process each: what another table left behind must not be counted.
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as alone:
                sizes.append(
                    alone.submit(resident_bytes, kind, count, directory / f"{number}{count}").result()
                )
        found[kind] = (sizes[1] - sizes[0]) / (keys - FEW_KEYS)
    print()
    note = f"resident bytes: {found['dynamic']:.0f} a key, {found['fixed']:.0f} a row of a fixed table, as trained"
    return found["dynamic"] / ROW_BYTES, [f"{note}; 16 floats and a slot of 16 are {ROW_BYTES}"]


def resident_bytes(kind: str, count: int, directory: Path) -> int:
    """Of this process, when it has trained so many rows and is about to save them."""
    model = dynamic_model(0) if kind == "dynamic" else build(count)
    resident = Resident()
    with hk.DeltaCheckpoint(directory, None, None) as checkpoint:
        model.fit(_every_row(count), shuffle=False, verbose=0, callbacks=[resident, checkpoint])
    return resident.bytes


class Resident(keras.callbacks.Callback):
    """What memory is resident after the last step; placed before the callback that saves what it trained."""

    bytes = 0

    def on_train_end(self, logs: Any = None) -> None:
        gc.collect()
        self.bytes = psutil.Process().memory_info().rss


def _every_row(count: int) -> tf.data.Dataset:
    """Each id once, made as it is needed: an array of them would be counted as memory of the table."""
    size = BATCH * IDS
    ids = tf.data.Dataset.range(count // size).map(lambda step: tf.range(step * size, (step + 1) * size))
    return ids.map(lambda ids: (tf.reshape(ids, [BATCH, IDS]), tf.zeros([BATCH, 1])))


def measure_deletes(keys: int, directory: Path) -> float:
    """Bytes of a delta over those of a full: one row in a hundred was touched, one in a thousand is deleted."""
    model = dynamic_model(keys, MostKeys(2 * keys))
    checkpoint = hk.DeltaCheckpoint(directory, None, None, serving_graph=False)
    checkpoint.resume(model)
    ids = np.random.default_rng(3).permutation(keys)
    touched, gone = ids[: keys // 100 // IDS * IDS], ids[-(keys // 1000) :]
    model.get_layer(TABLE).remove(keys_of(gone))
    model.fit(
        keys_of(touched).reshape(-1, IDS),
        np.ones((len(touched) // IDS, 1)),
        batch_size=BATCH,
        verbose=0,
        callbacks=[checkpoint],
    )
    checkpoint.save_full()
    checkpoint.close()
    manifests = Scanner(directory).scan().manifests
    (delta,) = (
        item for item in manifests if item.tables[f"{TABLE}/rows"].rows_deleted and item.kind is Kind.DELTA
    )
    if delta.tables[f"{TABLE}/rows"].rows_deleted != len(gone):
        raise SystemExit("the delta does not name the keys that were removed")
    return delta.total_bytes / next(item for item in manifests if item.kind is Kind.FULL).total_bytes


def measure_bytes(keys: int, directory: Path) -> float:
    """Bytes of a delta over those of a full: one row in a hundred was touched, one in a thousand is new."""
    ids = np.random.default_rng(3).permutation(keys)[: keys // 100 // IDS * IDS]
    new = keys // 1000 // IDS * IDS
    ids = np.concatenate([ids[new:], np.arange(keys, keys + new)])
    delta, full = save_both(dynamic_model(keys), keys_of(ids).reshape(-1, IDS), directory)
    if delta.tables[f"{TABLE}/rows"].rows_changed != ids.size:
        raise SystemExit("the delta does not hold exactly the rows that were trained")
    return delta.total_bytes / full.total_bytes


def measure_serving(directory: Path, rounds: int, seconds: int) -> dict[str, list[Load]]:
    loads: dict[str, list[Load]] = defaultdict(list)
    with ExitStack() as running:
        servers, trainers = {}, {}
        for kind, model in (("fixed", Ranker), ("dynamic", KeyedRanker)):
            trainer = trainers[kind] = TrainerProcess(directory / kind, ROWS, model)
            running.callback(trainer.stop)
            trainer.export()
            directories = ("--export-dir", str(trainer.export_dir), "--checkpoint-dir", str(trainer.run_dir))
            server = Server(directory / f"{kind}.log", "server.cli", "--port", "0", *directories)
            servers[kind] = running.enter_context(server)
        require_equal_answers(servers["fixed"], servers["dynamic"])
        for turn in progress("predictions over HTTP", rounds):
            for kind in sorted(servers, reverse=turn % 2 == 0):
                loads[kind].append(servers[kind].load(MANY, seconds))
            loads["quiet"].append(servers["dynamic"].load(FEW, seconds))
            with updates(trainers["dynamic"], servers["dynamic"]):
                loads["growing"].append(servers["dynamic"].load(FEW, seconds))
    return loads


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=20, help="interleaved rounds, a quarter of it over HTTP (default 20)"
    )
    parser.add_argument("--seconds", type=int, default=3, help="of each load over HTTP (default 3)")
    parser.add_argument("--keys", type=int, default=2_000_000, help="of the tables (default 2,000,000)")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        figures, notes = _measure(Path(scratch), arguments.rounds, arguments.seconds, arguments.keys)
    print_report(
        f"Tables without a fixed vocabulary: {arguments.keys:,} keys, batch {BATCH} x {IDS}, Zipf {ZIPF_EXPONENT}, "
        f"{NEW_SHARE:.0%} of a batch new, {COLUMNS} columns, Adagrad; serving as benchmarks.predict, updates of "
        f"{DELTA_ROWS:,} rows a second, one in ten of them new",
        figures,
        notes,
    )


def _measure(directory: Path, rounds: int, seconds: int, keys: int) -> tuple[list[Figure], list[str]]:
    per_key, memory = measure_memory(keys, directory / "memory")
    fixed, dynamic = fixed_subject(keys, rounds), dynamic_subject(keys)
    fixed_seconds, dynamic_seconds = compare_steps("step_over_fixed", rounds, fixed, dynamic)
    lookups = measure_lookups(rounds, dynamic.model, keys)
    del fixed, dynamic
    small, large = compare_steps(
        "step_growth", rounds, dynamic_subject(keys // 10), dynamic_subject(keys * 5 // 2)
    )
    longest, growing = measure_growing(min(2_000, keys // 500))
    overhead, evicting = measure_eviction(max(3, rounds // 2), keys, directory / "eviction")
    admission, waiting = measure_admission(max(3, rounds // 2), keys)
    share = measure_bytes(keys, directory / "bytes")
    share_deleted = measure_deletes(keys, directory / "deletes")
    loads = measure_serving(directory, max(1, rounds // 4), seconds)
    figures = [
        Figure("step_over_fixed", dynamic_seconds / fixed_seconds, "at most 2.0"),
        Figure("step_growth", large / small, "at most 1.5"),
        Figure("bytes_per_key_over_row", per_key, "at most 1.6"),
        Figure("http_throughput_over_fixed", _per_second(loads["dynamic"], loads["fixed"]), "at least 0.7"),
        *(Figure(name, us) for name, us in lookups.items()),
        Figure("worst_step_over_median_while_growing", longest),
        Figure("worst_predict_ms", max(load.worst_ms for load in loads["quiet"])),
        Figure("worst_predict_ms_while_growing", max(load.worst_ms for load in loads["growing"])),
        Figure("delta_over_full_bytes", share, "at most 0.02"),
        Figure("delta_over_full_bytes_with_deletes", share_deleted, "at most 0.02"),
        Figure("eviction_overhead", overhead, "at most 1.15"),
        *admission,
    ]
    steps = (
        f"a step: fixed {fixed_seconds * 1e3:.2f} ms, dynamic {dynamic_seconds * 1e3:.2f} ms; "
        f"with {keys // 10:,} keys {small * 1e3:.2f} ms, with {keys * 5 // 2:,} {large * 1e3:.2f} ms"
    )
    return figures, [steps, *growing, *evicting, *waiting, *memory, *_http_notes(loads)]


def _per_second(loads: list[Load], others: list[Load]) -> float:
    """Of the one over the other, asked in turn."""
    return statistics.median(
        load.per_second / other.per_second for load, other in zip(loads, others, strict=True)
    )


def _http_notes(loads: dict[str, list[Load]]) -> Iterator[str]:
    for name, of_rounds in loads.items():
        yield told(name, median_load(of_rounds))


if __name__ == "__main__":
    main()
