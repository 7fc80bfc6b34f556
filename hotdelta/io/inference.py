"""Inference models: the part of a model that maps some inputs to some outputs, saved by the exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from exporter import export_saved_model
from exporter.stores import export_into_store
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import to_directory
from hotdelta.io.model_state import is_session
from hotdelta.io.own_calls import called_our_way
from hotdelta.io.places import opened_version, versions_in
from hotdelta.io.pruning import pruned_signature
from hotdelta.remote.publish.spool import given_address
from hotdelta.train.serving.trace import DEFAULT_SIGNATURE
from hotdelta.train.tables.row_values import Array

SERVE = "serve"


@called_our_way
def save_inference_model(
    dirname: str | Path,
    feeded_var_names: Sequence[Any] | str,
    target_vars: Any,
    model: Any,
    save_incr_model: bool = False,
) -> Path | str:
    """Export what maps the named inputs to the targets, with only the variables that this needs, to `dirname/<n>/`.

    `target_vars`: outputs of a functional Keras model, or of its layers (tensors, or names of outputs or layers); names
    of outputs of any other Keras model; for a tf.Module, a tf.function with an input_signature; tensors of a Session's
    graph, whose inputs may be tensors, too. `save_incr_model`: the export can be updated by deltas.
    `dirname`: a directory, or the address of a store. Returns the path of the version, or its address.

    Raises ConfigurationError, StoreError.
    """
    export = partial(
        _export, _as_list(feeded_var_names), _as_list(target_vars), model, is_incremental=save_incr_model
    )
    address = given_address(dirname)
    if address is not None:
        return export_into_store(export, address, None)
    return export(to_directory(dirname, "dirname"), None)


def _export(
    feeds: list[Any],
    targets: list[Any],
    model: Any,
    directory: Path,
    version: int | None,
    *,
    is_incremental: bool,
) -> Path:
    if is_session(model):
        from hotdelta.io.session_inference import save_session

        number = version or max(versions_in(directory), default=0) + 1
        return save_session(directory / str(number), feeds, targets, model, is_incremental=is_incremental)
    signature = pruned_signature(model, feeds, targets)
    signatures = None if signature is None else {DEFAULT_SIGNATURE: signature}
    return export_saved_model(
        model, directory, save_incr_model=is_incremental, signatures=signatures, version=version
    )


class InferenceModel:
    """A loaded inference model: numpy arrays in, numpy arrays out, from any thread.

    It cannot be trained by accident. It runs in a Session of its own whose graph is finalized, it hands out neither
    variables nor tensors, and no GradientTape sees it.
    """

    def __init__(self, path: Path, *, place: Path | str | None = None) -> None:
        """`place`: from where it was brought to that path, if it was."""
        self.path = place or path
        graph = tf.Graph()
        self._session = tf.compat.v1.Session(graph=graph)
        with graph.as_default():
            loaded = tf.compat.v1.saved_model.load(self._session, [SERVE], str(path))
        graph.finalize()
        signature = loaded.signature_def[DEFAULT_SIGNATURE]
        self._inputs = {name: info.name for name, info in sorted(signature.inputs.items())}
        self._outputs = {name: info.name for name, info in sorted(signature.outputs.items())}
        self._dtypes = {
            name: tf.as_dtype(info.dtype).as_numpy_dtype for name, info in signature.inputs.items()
        }

    @property
    def feed_names(self) -> tuple[str, ...]:
        return tuple(self._inputs)

    @property
    def fetch_names(self) -> tuple[str, ...]:
        return tuple(self._outputs)

    def __call__(self, feed: Mapping[str, Any] | None = None, **named: Any) -> dict[str, Array]:
        """Give each input by name, in a dictionary or as keyword. Raises ConfigurationError for others."""
        values = {**(feed or {}), **named}
        if set(values) != set(self._inputs):
            raise ConfigurationError(
                f"the inputs are {', '.join(self.feed_names)}, and {', '.join(values) or 'nothing'} was given"
            )
        try:
            feeds = {self._inputs[name]: self._prepare(name, value) for name, value in values.items()}
            found: dict[str, Array] = self._session.run(self._outputs, feeds)
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(
                f"an input does not fit: {error}", hint="give arrays of the shapes that the model takes"
            ) from error
        return found

    def close(self) -> None:
        self._session.close()

    def _prepare(self, name: str, value: Any) -> Array:
        """The value in the dtype of the input. Refuses what numpy would cast in silence: 1.5 to 1, 300 to 44."""
        given, wanted = np.asarray(value), np.dtype(self._dtypes[name])
        if wanted.kind == "O" or not given.size:
            return np.asarray(value, wanted)
        is_integral = given.dtype.kind in "iu" and wanted.kind in "iub"
        if not is_integral and not np.can_cast(given.dtype, wanted, "same_kind"):
            raise ConfigurationError(f"input {name!r} is of {given.dtype}, and the model takes {wanted}")
        taken = given.astype(wanted)
        if is_integral and not np.array_equal(taken, given):
            raise ConfigurationError(f"input {name!r} has integers that do not fit into {wanted}")
        return taken


@called_our_way
def load_inference_model(dirname: str | Path) -> tuple[InferenceModel, tuple[str, ...], tuple[str, ...]]:
    """The newest version in what save_inference_model or the exporter wrote to, a directory or address; or a version.

    Returns it with the names of its inputs and outputs. Raises ConfigurationError when there is none.
    """
    with opened_version(dirname) as path:
        model = InferenceModel(path, place=given_address(dirname))
    return model, model.feed_names, model.fetch_names


def _as_list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]
