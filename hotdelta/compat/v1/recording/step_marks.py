"""Marks in the graph that tell when a run begins to write, and `bookmark`: what came with the batch that it trains.

A run may wait for its data inside of the Session, where no hook sees it. So whatever writes to a saved variable waits
for a mark, and the mark waits for the data.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.recording.recorder import SCOPE
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event
from hotdelta.tensorflow_internals import is_in_control_flow, run_before, waiting_for
from hotdelta.train.save.pauses import TrainedBatch

v1 = tf.compat.v1
logger = logging.getLogger(__name__)

# What `begun` says after a run that no hook saw, and before the first one that a hook saw.
UNSEEN = -1
# Operations in which a run waits for its data.
_SOURCES = ("IteratorGetNext", "QueueDequeue", "ReaderRead", "Unstage", "PyFunc", "EagerPyFunc")
_BOOKMARK = "_hotdelta_bookmark"
_NO_BATCH = -1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Noted:
    """What `bookmark` was given."""

    bookmark: tf.Tensor
    event_time: tf.Tensor


def bookmark(tensor: Any, event_time: Any = None) -> None:
    """Say, while the graph is built, where reading goes on after the batch that is trained: it is saved with the model.

    `tensor`: a number or a string, or an array of them, that comes from the input pipeline together with the batch, or
    is fed with it. However far the pipeline is ahead, what is saved belongs to the last batch that was trained.
    `event_time`: of the examples in the batch, in seconds since 1970; the newest becomes the watermark.
    Raises ConfigurationError when the graph has one already.
    """
    graph = v1.get_default_graph()
    if bookmark_of(graph) is not None:
        raise ConfigurationError(
            "a graph has one bookmark", hint="stack what belongs together: tf.stack([a, b])"
        )
    tensor = tf.convert_to_tensor(tensor)
    # Both come with the batch: what does not wait for the data runs before the step.
    with tf.control_dependencies([tensor]):
        seconds = tf.zeros([], tf.float64) if event_time is None else tf.cast(event_time, tf.float64)
        setattr(graph, _BOOKMARK, _Noted(tensor, tf.reduce_max(seconds)))


def bookmark_of(graph: Any) -> _Noted | None:
    return getattr(graph, _BOOKMARK, None)


class StepMarks:
    """Operations of one graph. Every run that writes puts its `ticket` into `begun`, before it writes anything.

    `hidden`: a writer inside of a cond or a loop, where no mark can be put before it; None: there is none.
    """

    def __init__(self) -> None:
        with tf.device("/cpu:0"), tf.control_dependencies(None):
            self.ticket = v1.placeholder_with_default(tf.constant(UNSEEN, tf.int64), [])
            self._variable = _variable("begun", tf.constant(UNSEEN, tf.int64))
            self.begun = self._variable.read_value()
        self.batch: KeptBatch | None = None
        self.hidden: str | None = None
        self._marked: set[str] = set()

    def keep_batch(self, noted: _Noted, counters: Sequence[Any]) -> None:
        """`counters`: what counts the global step. Raises ConfigurationError."""
        if self.batch is None:
            self.batch = KeptBatch(noted, counters)

    def add(self, writers: Iterable[Any]) -> None:
        """Those that have no mark yet. Before any Session runs them: it would not see the change."""
        own = self.batch.assigns if self.batch is not None else []
        new = [writer for writer in (*writers, *own) if writer.name not in self._marked]
        self._marked.update(writer.name for writer in new)
        hidden = [writer.name for writer in new if is_in_control_flow(writer)]
        if hidden and self.hidden is None:
            self.hidden = hidden[0]
            event(
                logger,
                logging.INFO,
                "a save that is due while a run waits for data is taken after the run",
                reason=f"{self.hidden} writes inside a cond or a loop",
            )
        for sources, group in _by_sources(writer for writer in new if writer.name not in hidden):
            with tf.device("/cpu:0"), tf.control_dependencies(sources):
                begin = self._variable.assign(self.ticket, name="begin", read_value=False)
            for writer in group:
                run_before(writer, begin)

    def reset(self, session: Any) -> None:
        """A Session begins: nothing was trained in it."""
        session.run([self._variable.initializer, self.batch.reset if self.batch is not None else []])


class KeptBatch:
    """What came with the last batch that was trained, in variables. `fetches` are for `read`."""

    def __init__(self, noted: _Noted, counters: Sequence[Any]) -> None:
        tensor = noted.bookmark
        if is_in_control_flow(tensor.op) or any(tensor.op.name in _reached(op) for op in counters):
            raise ConfigurationError(
                f"the bookmark {tensor.name} comes from inside a cond or a loop, or from the step itself",
                hint="give a tensor that comes with the batch",
            )
        if not counters or any(map(is_in_control_flow, counters)):
            raise ConfigurationError(
                "a bookmark belongs to a step, and nothing counts the steps outside of a cond or a loop",
                hint="give tf.train.get_or_create_global_step() to the optimizer",
            )
        empty = tf.constant("") if tensor.dtype == tf.string else tf.zeros([], tensor.dtype)
        with tf.device("/cpu:0"), tf.control_dependencies(None):
            bookmark = _variable("bookmark", empty, shape=tf.TensorShape(None))
            event_time = _variable("event_time", tf.constant(_NO_BATCH, tf.float64))
            self.fetches = [bookmark.read_value(), event_time.read_value()]
            is_time = tf.math.is_finite(noted.event_time)
            newest = tf.maximum(
                self.fetches[1], tf.where(is_time, noted.event_time, tf.zeros_like(self.fetches[1]))
            )
            self.assigns = [
                bookmark.assign(tensor, read_value=False),
                event_time.assign(newest, read_value=False),
            ]
        self.reset = [bookmark.initializer, event_time.initializer]
        for counter in counters:
            for assign in self.assigns:
                run_before(counter, assign)

    def read(self, fetched: Sequence[Any], *, before: TrainedBatch) -> TrainedBatch:
        """`before`: the last one that was trained before this Session."""
        bookmark, event_time = fetched
        if event_time == _NO_BATCH:
            return before
        return TrainedBatch(bookmark, max(before.event_time or 0.0, float(event_time)) or None)


def _variable(name: str, initial: tf.Tensor, **options: Any) -> tf.Variable:
    return v1.Variable(
        initial, trainable=False, collections=[], use_resource=True, name=f"{SCOPE}/{name}", **options
    )


def _by_sources(writers: Iterable[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Those that wait for the same data, with what they wait in.

    No more than that: a mark must not make a writer that is run by itself wait for data.
    """
    operations = v1.get_default_graph().get_operations()
    sources = [each for each in operations if each.type.startswith(_SOURCES) and not is_in_control_flow(each)]
    reached = [_reached(source) for source in sources]
    groups: dict[tuple[int, ...], list[Any]] = defaultdict(list)
    for writer in writers:
        waits = tuple(number for number, names in enumerate(reached) if writer.name in names)
        groups[waits].append(writer)
    for waits, group in groups.items():
        yield [sources[number] for number in waits], group


def _reached(start: Any) -> set[str]:
    """The names of all operations that run after it."""
    found: set[str] = set()
    queue = [start]
    while queue:
        operation = queue.pop()
        followers = [each for tensor in operation.outputs for each in tensor.consumers()]
        for follower in (*followers, *waiting_for(operation)):
            if follower.name not in found:
                found.add(follower.name)
                queue.append(follower)
    return found
