"""Ten minutes in which a tenth of the keys of a table is replaced each minute: nothing grows, nothing slows down.

A trainer process that saves every second, and the server process that follows it. Times on a machine that others use
too are noisy: what is compared is the processor time of look-ups, over that of look-ups in a table that stays as it is.
The two take turns, in one process, so that what else the machine does meets both.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hotdelta.chain import Kind, Position, Scanner
from hotdelta.chain.format.manifest import TableRecord
from tests.end_to_end.processes import Program, Server
from tests.loader.step_model import export
from tests.soak.test_ten_minutes import ended
from tests.soak.turnover_trainer import IN_USE, LIVE, NEW_IN_STEP, STEPS_A_SECOND, TABLE

MINUTES = float(os.environ.get("HOTDELTA_SOAK_MINUTES", "10"))
# The first tenth warms up; the second is what the last is compared with. Of ten minutes each is a minute.
TENTHS = 10
SECONDS_OF_TENTH = round(MINUTES * 60 / TENTHS)
PAIRS_A_SECOND = 4
NEW_A_SECOND = NEW_IN_STEP * STEPS_A_SECOND
# Fills within the first minute: what undo may take is not what is measured here.
UNDO_BYTES = 4 * 2**20
LATE_SECONDS = 10
FLAT, FLAT_ROWS = 1.05, 1.01

LookUps = Sequence[tuple[float, float]]


class Trainer(Program):
    """`turnover_trainer`."""

    def __init__(self, root: Path) -> None:
        super().__init__("tests.soak.turnover_trainer", str(root / "run"), errors=root / "trainer.log")
        self._read_line()

    def begin(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        return json.loads(self._read_line())

    def save(self, keys: Sequence[int]) -> tuple[str, bytes]:
        """The position, and the bits of what these keys read there."""
        self.begin({"do": "save", "keys": list(keys)})
        answer = self.answer()
        assert answer["failures"] == 0
        return answer["position"], bytes.fromhex(answer["bits"])


@dataclass(frozen=True)
class Second:
    """What one second of training left behind. `look_ups`: processor time in the table, and in the one that stays."""

    trainer_rss: int
    server_rss: int
    trainer_look_ups: LookUps
    server_look_ups: LookUps


@dataclass(frozen=True)
class Tenth:
    """Medians of a tenth of the run. `look_up`: the time in the table over that in the one that stays."""

    trainer_mb: float
    server_mb: float
    trainer_look_up: float
    server_look_up: float

    @classmethod
    def of(cls, seconds: Sequence[Second]) -> Tenth:
        return cls(
            statistics.median(second.trainer_rss for second in seconds) / 1e6,
            statistics.median(second.server_rss for second in seconds) / 1e6,
            ratio(pair for second in seconds for pair in second.trainer_look_ups),
            ratio(pair for second in seconds for pair in second.server_look_ups),
        )


def ratio(look_ups: Iterable[tuple[float, float]]) -> float:
    """The median of many: what applies and saves take falls into some of them."""
    return statistics.median(ours / still for ours, still in look_ups)


class Deltas:
    """What the deltas say of the table. Those of long ago are gone from the directory, so look again and again."""

    def __init__(self, run_dir: Path) -> None:
        self._scanner = Scanner(run_dir)
        self._records: dict[Position, TableRecord] = {}

    def look(self) -> list[TableRecord]:
        """Those that are new."""
        deltas = [found for found in self._scanner.scan().manifests if found.kind is Kind.DELTA]
        new = {found.position: found.tables[TABLE] for found in deltas if found.position not in self._records}
        self._records |= new
        return [new[position] for position in sorted(new)]


class Turnover:
    """A trainer and the server that follows it."""

    def __init__(self, trainer: Trainer, server: Server) -> None:
        self._trainer, self._server = trainer, server
        self._trainer_process, self._server_process = (
            psutil.Process(program.process.pid) for program in (trainer, server)
        )
        self.oldest = LIVE - IN_USE

    def train_for_a_second(self) -> Second:
        """The server is asked meanwhile."""
        self._trainer.begin({"do": "train"})
        server_look_ups = [self._server_look_ups() for _ in range(PAIRS_A_SECOND)]
        answer = self._trainer.answer()
        self.oldest = answer["oldest"]
        return Second(
            self._trainer_process.memory_info().rss,
            self._server_process.memory_info().rss,
            answer["look_up_seconds"],
            server_look_ups,
        )

    def require_right_answers(self) -> None:
        """Of keys in use, of all ages, and of others that are gone or never were; and all that are in use are there."""
        keys = np.linspace(-1_000, self.oldest + IN_USE + 1_000, 2_000).astype(np.int64).tolist()
        position, bits = self._trainer.save(keys)
        wanted = {"min_position": position, "wait_ms": 10_000}
        vectors = self._server.predict({"inputs": {"keys": keys}, **wanted}).json()["outputs"]["vectors"]
        assert np.array(vectors, np.float32).tobytes() == bits
        span = {"inputs": {"first": [self.oldest]}, "signature_name": "users", **wanted}
        assert self._server.predict(span).json()["outputs"]["missing"] == [0]

    def _server_look_ups(self) -> tuple[float, float]:
        return self._server_seconds("users", self.oldest), self._server_seconds("still", 0)

    def _server_seconds(self, signature: str, first: int) -> float:
        start = processor_seconds(self._server_process.pid)
        self._server.predict({"inputs": {"first": [first]}, "signature_name": signature})
        return processor_seconds(self._server_process.pid) - start


def processor_seconds(pid: int) -> float:
    """Of all threads of a process, to the nanosecond; psutil has it in hundredths of a second."""
    # What clock_getcpuclockid(3) answers.
    return time.clock_gettime(~pid << 3 | 2)


@pytest.mark.soak
def test_memory_look_ups_and_rows_in_use_stay_where_they_were(tmp_path: Path) -> None:
    with ended(Trainer(tmp_path)) as trainer:
        export(tmp_path / "run", tmp_path / "export")
        flags = ("--undo-bytes", str(UNDO_BYTES))
        log = tmp_path / "server.log"
        with ended(Server(tmp_path / "export", tmp_path / "run", log, *flags)) as server:
            server.wait_until_ready()
            turnover, deltas = Turnover(trainer, server), Deltas(tmp_path / "run")
            tenths, records = list[Tenth](), list[list[TableRecord]]()
            deltas.look()
            for number in range(1, TENTHS + 1):
                tenths.append(Tenth.of([turnover.train_for_a_second() for _ in range(SECONDS_OF_TENTH)]))
                turnover.require_right_answers()
                records.append(deltas.look())
                print(f"{number}: {tenths[-1]}; {said_of(records[-1])}", flush=True)
            assert server.version()["update_state"] == "following"
            assert server.version()["quarantined"] == []
    for later in records[1:]:
        require_constant(later)
    first, last = tenths[1], tenths[-1]
    assert rows_in_use(records[-1]) <= rows_in_use(records[1]) * FLAT_ROWS
    assert last.trainer_mb <= first.trainer_mb * FLAT
    assert last.server_mb <= first.server_mb * FLAT
    assert last.trainer_look_up <= first.trainer_look_up * FLAT
    assert last.server_look_up <= first.server_look_up * FLAT


def said_of(records: Sequence[TableRecord]) -> str:
    new = sum(record.keys_new or 0 for record in records)
    gone = sum(record.rows_deleted for record in records)
    live, rows = records[-1].keys_live, rows_in_use(records)
    return f"{len(records)} deltas, {new} keys came, {gone} went, {live} live, {rows} rows in use"


def rows_in_use(records: Sequence[TableRecord]) -> int:
    return records[-1].stored_shape[0]


def require_constant(records: Sequence[TableRecord]) -> None:
    """As many keys went as came; what came since the last sweep is more than there should be, and a little late."""
    trained = SECONDS_OF_TENTH * NEW_A_SECOND
    for record in records:
        assert LIVE <= (record.keys_live or 0) <= LIVE + LATE_SECONDS * NEW_A_SECOND
    assert sum(record.keys_new or 0 for record in records) >= trained
    assert sum(record.rows_deleted for record in records) >= trained - LATE_SECONDS * NEW_A_SECOND
