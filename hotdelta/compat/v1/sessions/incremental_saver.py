"""`IncrementalSaver` of DeepRec: the same Saver, incremental from the start."""

from __future__ import annotations

from typing import Any

from hotdelta.compat.v1.sessions.saver import Saver


class IncrementalSaver(Saver):
    """`incremental_save` writes deltas; `restore` takes a full, or a delta, which means what it led to."""

    def __init__(self, var_list: Any = None, *args: Any, **kwargs: Any) -> None:
        kwargs["incremental_save_restore"] = True
        super().__init__(var_list, *args, **kwargs)

    def build(self, filename_tensor: Any = None) -> None:  # noqa: ARG002 - as DeepRec has it; names come with each save
        super().build()
