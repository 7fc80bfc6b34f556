"""What TensorFlow Serving says of a model: its versions and its signatures. 64-bit integers are strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotdelta.chain import SignatureSpec, TensorSpec

_TYPES = {"float32": "DT_FLOAT", "float64": "DT_DOUBLE", "float16": "DT_HALF"}


def status_document(version: int) -> dict[str, Any]:
    """Of the version that is served; there is never a second one."""
    status = {"error_code": "OK", "error_message": ""}
    return {"model_version_status": [{"version": str(version), "state": "AVAILABLE", "status": status}]}


def metadata_document(name: str, version: int, signatures: Mapping[str, SignatureSpec]) -> dict[str, Any]:
    described = {
        signature: {
            "inputs": {tensor.name: _tensor(signature, tensor) for tensor in spec.inputs},
            "outputs": {tensor.name: _tensor(signature, tensor) for tensor in spec.outputs},
            "method_name": "tensorflow/serving/predict",
        }
        for signature, spec in sorted(signatures.items())
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {"signature_def": {"signature_def": described}},
    }


def type_name(dtype: str) -> str:
    return _TYPES.get(dtype, f"DT_{dtype.upper()}")


def _tensor(signature: str, tensor: TensorSpec) -> dict[str, Any]:
    sizes = tensor.shape or ()
    dimensions = [{"size": str(-1 if size is None else size), "name": ""} for size in sizes]
    return {
        "dtype": type_name(tensor.dtype),
        "tensor_shape": {"dim": dimensions, "unknown_rank": tensor.shape is None},
        "name": f"{signature}_{tensor.name}:0",
    }
