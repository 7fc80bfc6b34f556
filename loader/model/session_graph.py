"""An export in a Session of its own: loading it, calling its signatures, letting go of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from hotdelta.chain import SignatureSpec
from hotdelta.errors import ApplyError
from hotdelta.signature_calls import Call, make_call, require_names
from hotdelta.tensorflow_internals import load_into_session
from loader.model.huge_pages import HugePages


class SessionGraph:
    """One loaded SavedModel. Calls may come from any thread; `close` only when none is running."""

    def __init__(self, path: Path, *, predict_threads: int) -> None:
        """Raises ApplyError when it cannot be loaded."""
        config = config_of_this_process()
        config.session_inter_op_thread_pool.add(num_threads=max(1, predict_threads))
        graph = tf.Graph()
        self._huge_pages: HugePages | None = None
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        try:
            with translated(f"loading {path}"):
                meta_graph = load_into_session(self._session, path)
        except BaseException:
            self.close()
            raise
        self._definitions = dict(meta_graph.signature_def.items())
        functions = meta_graph.graph_def.library.function
        # XLA compiles a function anew for each shape of its inputs.
        self.is_compiled = any(function.attr["_XlaMustCompile"].b for function in functions)

    @property
    def signatures(self) -> frozenset[str]:
        return frozenset(self._definitions)

    def use_huge_pages(self, move: Callable[[tf.compat.v1.Session], HugePages]) -> None:
        """Move variables that will be updated row by row. Call it before the first call of a signature."""
        self._huge_pages = move(self._session)

    def settle(self) -> None:
        """Wait until nothing runs in the background any more."""
        if self._huge_pages is not None:
            self._huge_pages.wait()

    def callable(self, signature: str, *, pool: int) -> Call:
        """A call of a signature with arrays by input name. TensorFlow's errors come out of it untranslated."""
        return make_call(self._session, self._definitions[signature], pool=pool)

    def prediction(self, signature: str, spec: SignatureSpec, *, pool: int) -> Call:
        """The same, of a signature that answers requests as `spec` says. Raises ApplyError when it does not."""
        require_names(signature, spec, self._definitions[signature])
        return self.callable(signature, pool=pool)

    def close(self) -> None:
        """Frees the variables. Callables must have been dropped."""
        session, huge_pages = self._session, self._huge_pages
        self._session = self._huge_pages = None
        if huge_pages is not None:
            huge_pages.stop()
        if session is not None:
            session.close()


def config_of_this_process() -> tf.compat.v1.ConfigProto:
    """Whether graphs are optimized is said with tf.config, which a Session with a config of its own does not ask."""
    config = tf.compat.v1.ConfigProto()
    options = tf.config.optimizer.get_experimental_options()
    is_off = options.get("disable_meta_optimizer", False)
    config.graph_options.rewrite_options.disable_meta_optimizer = is_off
    return config


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
