"""An export in a Session of its own: loading it, calling its signatures, letting go of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.saved_model.loader_impl import SavedModelLoader

from hotdelta.errors import ApplyError
from loader.huge_pages import HugePages

Array = npt.NDArray[Any]
Call = Callable[[Mapping[str, Array]], dict[str, Array]]

# Where the operations of one call run. Updates take the caller's thread too: in a pool of their own every operation
# waits for a thread to wake up (an update of 20,000 rows takes a third longer), in that of the predictions they starve
# these.
CALLER_THREAD = -1
PREDICT_POOL = 0


class SessionGraph:
    """One loaded SavedModel. Calls may come from any thread; `close` only when none is running."""

    def __init__(self, path: Path, *, predict_threads: int) -> None:
        """Raises ApplyError when it cannot be loaded."""
        config = tf.compat.v1.ConfigProto()
        config.session_inter_op_thread_pool.add(num_threads=max(1, predict_threads))
        graph = tf.Graph()
        self._huge_pages: HugePages | None = None
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        try:
            with translated(f"loading {path}"):
                # What tf.compat.v1.saved_model.load calls, without its line about deprecation.
                meta_graph = SavedModelLoader(str(path)).load(self._session, [tf.saved_model.SERVING])
        except BaseException:
            self.close()
            raise
        self._definitions = {
            name: _Definition(definition) for name, definition in meta_graph.signature_def.items()
        }

    @property
    def signatures(self) -> frozenset[str]:
        return frozenset(self._definitions)

    def use_huge_pages(self) -> None:
        """For variables that are updated row by row. Before the first call."""
        self._huge_pages = HugePages(self._session)

    def settle(self) -> None:
        """Until nothing goes on in the background any more."""
        if self._huge_pages is not None:
            self._huge_pages.wait()

    def callable(self, signature: str, *, pool: int) -> Call:
        """A call of a signature with arrays by input name. TensorFlow's errors come out of it untranslated."""
        definition = self._definitions[signature]
        options = config_pb2.CallableOptions(feed=definition.feeds, fetch=definition.fetches)
        options.run_options.inter_op_thread_pool = pool
        # The public make_callable takes no thread pool and costs 225 us; this 35 in a pool, 7 in the caller thread.
        handle = self._session._make_callable_from_options(options)  # noqa: SLF001
        input_names, output_names = definition.input_names, definition.output_names

        def call(feeds: Mapping[str, Array]) -> dict[str, Array]:
            values = handle(*[feeds[name] for name in input_names])
            return dict(zip(output_names, values, strict=True))

        return call

    def close(self) -> None:
        """Frees the variables. Callables must have been dropped."""
        session, huge_pages = self._session, self._huge_pages
        self._session = self._huge_pages = None
        if huge_pages is not None:
            huge_pages.stop()
        if session is not None:
            session.close()


class _Definition:
    """The tensors of a signature, in one fixed order."""

    def __init__(self, definition: Any) -> None:
        self.input_names = sorted(definition.inputs)
        self.output_names = sorted(definition.outputs)
        self.feeds = [definition.inputs[name].name for name in self.input_names]
        self.fetches = [definition.outputs[name].name for name in self.output_names]


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """TensorFlow's own errors, and those of its loader, as ApplyError."""
    try:
        yield
    except (tf.errors.OpError, OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise ApplyError(f"{doing} failed: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """What an error says, without the names of graph nodes."""
    text = error.message if isinstance(error, tf.errors.OpError) else str(error) or repr(error)
    kept = [line.strip() for line in text.splitlines() if line.strip() and "{{node" not in line]
    return kept[0] if kept else type(error).__name__
