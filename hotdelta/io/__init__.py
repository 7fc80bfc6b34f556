"""Named ways to save and load exactly the variables you mean. docs/saving.md says which call is for what.

Importing it imports TensorFlow only when one of them is used, so that `hotdelta describe` answers at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotdelta.io.describing import describe
    from hotdelta.io.inference import InferenceModel, load_inference_model, save_inference_model
    from hotdelta.io.loading import Loaded, load_params, load_persistables, load_vars
    from hotdelta.io.saving import save_params, save_persistables, save_vars
    from hotdelta.io.variable_class import VariableClass, VariableInfo

__all__ = [
    "InferenceModel",
    "Loaded",
    "VariableClass",
    "VariableInfo",
    "describe",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_vars",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
]

_HOMES = {
    "InferenceModel": "inference",
    "Loaded": "loading",
    "VariableClass": "variable_class",
    "VariableInfo": "variable_class",
    "describe": "describing",
    "load_inference_model": "inference",
    "load_params": "loading",
    "load_persistables": "loading",
    "load_vars": "loading",
    "save_inference_model": "inference",
    "save_params": "saving",
    "save_persistables": "saving",
    "save_vars": "saving",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hotdelta.io' has no attribute {name!r}")
    return getattr(import_module(f"hotdelta.io.{_HOMES[name]}"), name)
