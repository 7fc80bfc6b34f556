"""tf.saved_model, exporting through `exporter`: the SavedModels load fulls and, with save_incr_model, deltas."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import tensorflow as _tensorflow

from exporter.export import ExportOptions
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_session, refuse_text, signatures_of
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import to_directory

__all__ = ["Builder", "builder", "simple_save"]

_v1 = _tensorflow.compat.v1


class Builder:
    """tf.saved_model.Builder for one graph that is served.

    `save_incr_model`: the SavedModel can take deltas, not only full checkpoints. `allow_whole_table_reads`: the keys
    of tables that predictions may read whole.
    """

    def __init__(
        self, export_dir: str, save_incr_model: bool = False, allow_whole_table_reads: Collection[str] = ()
    ) -> None:
        self._target = to_directory(export_dir, "export_dir")
        self._options = ExportOptions(
            save_incr_model=save_incr_model, allow_whole_table_reads=tuple(allow_whole_table_reads)
        )
        self._given: tuple[Any, Any] | None = None
        if self._target.exists() and any(self._target.iterdir()):
            raise AssertionError(f"Export directory already exists, and isn't empty: {export_dir}")

    def add_meta_graph_and_variables(
        self, sess: Any, tags: Any, signature_def_map: Any = None, **_options: Any
    ) -> None:
        """Look-up tables are found in the graph; the other options of tf.saved_model.Builder are not needed."""
        if list(tags) != [_v1.saved_model.tag_constants.SERVING]:
            raise ConfigurationError(
                f"a SavedModel with the tags {list(tags)} cannot be exported here",
                hint="export one for tf.saved_model.tag_constants.SERVING",
            )
        self._given = sess, signatures_of(signature_def_map, sess.graph)

    def save(self, as_text: bool = False) -> bytes:
        refuse_text(as_text)
        if self._given is None:
            raise ConfigurationError("nothing to save", hint="call add_meta_graph_and_variables first")
        session, signatures = self._given
        path = export_session(session, signatures, self._target, self._options)
        return str(path / "saved_model.pb").encode()


def _make_builder(
    export_dir: str, save_incr_model: bool = False, allow_whole_table_reads: Collection[str] = ()
) -> Any:
    """The older name of Builder. Scripts that say neither option may export anything that TensorFlow can."""
    if not save_incr_model and not allow_whole_table_reads:
        return _v1.saved_model.Builder(export_dir)
    return Builder(export_dir, save_incr_model, allow_whole_table_reads)


builder = SimpleNamespace(SavedModelBuilder=_make_builder)


def simple_save(
    session: Any,
    export_dir: str,
    inputs: Any,
    outputs: Any,
    legacy_init_op: Any = None,  # noqa: ARG001 - an option of tf.saved_model
    save_incr_model: bool = False,
    allow_whole_table_reads: Collection[str] = (),
) -> None:
    """tf.saved_model.simple_save, with the options of Builder."""
    signature = GraphSignature(dict(inputs), dict(outputs))
    name = _v1.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    options = ExportOptions(
        save_incr_model=save_incr_model, allow_whole_table_reads=tuple(allow_whole_table_reads)
    )
    export_session(session, {name: signature}, to_directory(export_dir, "export_dir"), options)


def __getattr__(name: str) -> Any:
    return getattr(_v1.saved_model, name)


def __dir__() -> list[str]:
    return sorted({*dir(_v1.saved_model), *__all__})
