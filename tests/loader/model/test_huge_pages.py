"""Large tables lie in huge pages, where the system has any, and hold what they held."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from loader.model.huge_pages import SETTING, HugePages, Place, collapse, find_variables, madvise
from loader.model.live_model import LiveModel
from tests.loader.step_model import StepModel, Trainer, export

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked for huge pages")

LARGE, SMALL = (320_000, 16), (1000, 16)
LARGE_BYTES = 320_000 * 16 * 4


def has_huge_pages() -> bool:
    """Linux 6.1 was the first that makes them when it is asked to."""
    version = tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])
    return version >= (6, 1) and SETTING.is_file() and "[never]" not in SETTING.read_text()


needs_huge_pages = pytest.mark.skipif(
    not has_huge_pages(), reason="this system makes no huge pages on demand"
)


class NotedAdvice:
    """Advises the system and notes what it answers to each advice: 0 when it took it."""

    def __init__(self) -> None:
        self.answers: list[int] = []

    def __call__(self, start: int, size: int, advice: int) -> int:
        self.answers.append(madvise(start, size, advice))
        return self.answers[-1]

    def move(self, session: tf.compat.v1.Session, setting: Path = SETTING) -> HugePages:
        """With patience, however slow this machine is."""
        return HugePages(session, setting=setting, advise=self, patience_seconds=math.inf)

    def require_moved(self, found_bytes: int) -> None:
        """Unless the system says that it has none to give: other programs may leave it no memory in one piece."""
        is_moved = found_bytes > LARGE_BYTES // 2
        if any(self.answers) and not is_moved:
            pytest.skip(f"the system refused: {[os.strerror(number) for number in self.answers if number]}")
        assert is_moved


class Variables:
    """Two variables of a Session."""

    def __init__(self, session: tf.compat.v1.Session) -> None:
        self.session = session
        self.large = np.random.default_rng(3).random(LARGE, np.float32)
        self._handle = self._create("large", self.large)
        self._create("small", np.zeros(SMALL, np.float32))

    def _create(self, name: str, value: Any) -> Any:
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=value.shape, shared_name=name)
        fed = tf.compat.v1.placeholder(tf.float32, value.shape)
        # TensorFlow may take what it is fed as it is; a sum has memory of its own, as what is restored has.
        assign = tf.raw_ops.AssignVariableOp(resource=handle, value=fed + 0.0)
        self.session.run(assign, {fed: value})
        return handle

    def gathered(self) -> Any:
        ids = np.arange(LARGE[0])
        return self.session.run(
            tf.raw_ops.ResourceGather(resource=self._handle, indices=ids, dtype=tf.float32)
        )


@pytest.fixture
def variables() -> Iterator[Variables]:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        yield Variables(session)


def huge_bytes(place: Place) -> int:
    """How much is in huge pages of the mappings that a place lies in."""
    total, is_inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first, end = int(found[1], 16), int(found[2], 16)
            is_inside = end > place.address and first < place.address + place.size
        elif line.startswith("AnonHugePages:") and is_inside:
            total += int(line.split()[1]) * 1024
    return total


def test_a_variable_is_found_where_it_lies(variables: Variables) -> None:
    (place,) = find_variables(variables.session, LARGE_BYTES)
    assert ctypes.string_at(place.address, place.size) == variables.large.tobytes()


@needs_huge_pages
def test_a_large_variable_moves_into_huge_pages_and_holds_what_it_held(variables: Variables) -> None:
    (place,) = find_variables(variables.session, LARGE_BYTES)
    advice = NotedAdvice()
    advice.move(variables.session).wait()
    found_bytes = huge_bytes(place)
    assert find_variables(variables.session, LARGE_BYTES) == [place]
    assert variables.gathered().tobytes() == variables.large.tobytes()
    advice.require_moved(found_bytes)


def test_where_the_owner_switched_huge_pages_off_nothing_is_asked_of_the_system(
    variables: Variables, tmp_path: Path
) -> None:
    """How many there are says nothing: the system makes some by itself, in its own time."""
    advice, setting = NotedAdvice(), tmp_path / "enabled"
    setting.write_text("always madvise [never]\n")
    advice.move(variables.session, setting).wait()
    advice.move(variables.session, tmp_path / "missing").wait()
    assert advice.answers == []
    setting.write_text("always [madvise] never\n")
    advice.move(variables.session, setting).wait()
    assert advice.answers


def test_memory_that_the_system_does_not_collapse_is_no_error() -> None:
    nowhere = Place(address=2**21, size=2**22)
    assert not collapse(nowhere, threading.Event(), patience_seconds=math.inf)
    assert collapse(Place(address=2**21 + 1, size=2**21), threading.Event(), patience_seconds=math.inf)


def test_a_busy_page_is_left_out_and_a_model_that_is_closed_is_moved_no_further() -> None:
    advised: list[int] = []

    def advise(start: int, size: int, advice: int) -> int:
        advised.append(size)
        return 0 if len(advised) % 2 else errno.EAGAIN

    place, stop = Place(address=2**30, size=2**26), threading.Event()
    assert collapse(place, stop, advise=advise, patience_seconds=math.inf)
    pieces = list(advised)
    assert (len(pieces), sum(pieces)) == (8, place.size)
    stop.set()
    assert not collapse(place, stop, advise=advise, patience_seconds=math.inf)
    assert advised == [*pieces, pieces[0]]


def test_where_nothing_is_in_use_yet_there_is_nothing_to_move_and_others_are_moved_all_the_same() -> None:
    """Of a growing table only the first rows take memory. The system answers for the rest that there is nothing."""
    advised: list[int] = []

    def advise(start: int, size: int, advice: int) -> int:
        advised.append(start)
        return 0 if start < 2**30 + 2**24 else errno.EINVAL

    growing = Place(address=2**30, size=2**26)
    assert collapse(growing, threading.Event(), advise=advise, patience_seconds=math.inf)
    assert advised == [2**30, 2**30 + 2**23, 2**30 + 2**24]


@needs_huge_pages
def test_the_tables_of_a_loaded_export_lie_in_huge_pages(tmp_path: Path) -> None:
    advice = NotedAdvice()
    trainer = Trainer(tmp_path / "run", model=StepModel(rows=LARGE[0], width=LARGE[1]))
    trainer.train([1])
    export(tmp_path / "run", tmp_path / "export")
    trainer.close()
    path = tmp_path / "export" / "1"
    with contextlib.closing(LiveModel.load(path, move_to_huge_pages=advice.move)) as model:
        model.settle()
        (place,) = find_variables(model._graph._session, LARGE_BYTES)  # type: ignore[union-attr]
        advice.require_moved(huge_bytes(place))
