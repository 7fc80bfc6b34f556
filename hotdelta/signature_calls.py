"""How the signatures of an export are called in a Session: by the names that its metadata gives.

The loader answers requests through this, and the exporter tries each signature through it before it publishes: what
can be exported can be served. Never reads or changes anything itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from hotdelta.chain import SignatureSpec, TensorSpec
from hotdelta.errors import ApplyError
from hotdelta.tensorflow_internals import make_callable

Array = npt.NDArray[Any]
Call = Callable[[Mapping[str, Array]], dict[str, Array]]

# Where the operations of one call run. Updates take the caller's thread too: in a pool of their own every operation
# waits for a thread to wake up (an update of 20,000 rows takes a third longer), in that of the predictions they starve
# these.
CALLER_THREAD = -1
PREDICT_POOL = 0


def make_call(session: Any, definition: Any, *, pool: int) -> Call:
    """A call of a SignatureDef with arrays by input name. TensorFlow's errors come out of it untranslated."""
    input_names, output_names = sorted(definition.inputs), sorted(definition.outputs)
    handle = make_callable(
        session,
        feeds=[definition.inputs[name].name for name in input_names],
        fetches=[definition.outputs[name].name for name in output_names],
        pool=pool,
    )

    def call(feeds: Mapping[str, Array]) -> dict[str, Array]:
        values = handle(*[feeds[name] for name in input_names])
        return dict(zip(output_names, values, strict=True))

    return call


def require_names(name: str, spec: SignatureSpec, definition: Any) -> None:
    """Raises ApplyError when the graph calls inputs or outputs otherwise than the metadata: no request would fit."""
    for what, said, found in (
        ("inputs", spec.inputs, definition.inputs),
        ("outputs", spec.outputs, definition.outputs),
    ):
        names = sorted(tensor.name for tensor in said)
        if names != sorted(found):
            raise ApplyError(
                f"signature {name!r} has the {what} {_show(found)} in its graph, and {_show(names)} by its metadata",
                hint="export it again",
            )


def zeros_for(spec: SignatureSpec, *, rows: int = 1) -> dict[str, Array]:
    """So many rows of zeros or empty strings, and no more of anything else than the signature wants."""
    return {tensor.name: _zeros(tensor, rows) for tensor in spec.inputs}


def _zeros(tensor: TensorSpec, rows: int) -> Array:
    sizes = [1 if size is None else size for size in tensor.shape or ()]
    if tensor.shape and tensor.shape[0] is None:
        sizes[0] = rows
    if tensor.dtype == "string":
        return np.full(sizes, b"", object)
    return np.zeros(sizes, array_dtype(tensor.dtype))


@functools.cache
def array_dtype(dtype: str) -> np.dtype[Any]:
    """Of arrays that TensorFlow takes, and numpy can count with; `stored_dtype` of hotdelta.chain knows bits alone."""
    found: np.dtype[Any] = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
    return found


def _show(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"
