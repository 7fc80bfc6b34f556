"""Turns what a trainer leaves behind into one SavedModel that holds both restore subgraphs.

Importing it imports TensorFlow only when something is exported, so that `exporter --help` answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exporter.export import export_saved_model

__all__ = ["export_saved_model"]


def __getattr__(name: str) -> Any:
    if name != "export_saved_model":
        raise AttributeError(f"module 'exporter' has no attribute {name!r}")
    from exporter.export import export_saved_model

    return export_saved_model
