"""`tf.estimator.Exporter`s: which of the evaluated states `train_and_evaluate` exports, and how many it keeps."""

from __future__ import annotations

import abc
import inspect
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from hotdelta.compat.v1.estimator.eval_events import read_results
from hotdelta.compat.v1.estimator.export_job import refuse_extras
from hotdelta.errors import ConfigurationError

Result = Mapping[str, Any]
COMPARED = ("best_eval_result", "current_eval_result")


class Exporter(abc.ABC):
    """Called after each evaluation; derive from it for an export of another kind."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Of its directory in `<model_dir>/export`."""

    @abc.abstractmethod
    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Result,
        is_the_final_export: bool,
    ) -> bytes | None:
        """What was evaluated, to a new directory in `export_path`; returns its path, or None: nothing was exported."""


class SavedModelExporter(Exporter):
    """What those of tf.estimator have in common. See Estimator.export_saved_model."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Any,
        assets_extra: Any = None,
        as_text: bool = False,
        *,
        save_incr_model: bool = False,
        allow_whole_table_reads: Collection[str] = (),
    ) -> None:
        """Raises ConfigurationError when nothing could ever be exported."""
        refuse_extras(assets_extra, as_text=as_text)
        if not callable(serving_input_receiver_fn):
            raise ConfigurationError(
                f"exporter {name!r}: serving_input_receiver_fn is {serving_input_receiver_fn!r}",
                hint="give a function that returns a tf.estimator.export.ServingInputReceiver",
            )
        self._name = name
        self._serving_input_receiver_fn = serving_input_receiver_fn
        self._allow_whole_table_reads = tuple(allow_whole_table_reads)
        self.save_incr_model = save_incr_model

    @property
    def name(self) -> str:
        return self._name

    def _save(self, estimator: Any, export_path: str, checkpoint_path: str) -> bytes:
        """What was evaluated; for servers that take deltas the newest state, which is where they have to go on from."""
        exported: bytes = estimator.export_saved_model(
            export_path,
            self._serving_input_receiver_fn,
            checkpoint_path=None if self.save_incr_model else checkpoint_path,
            save_incr_model=self.save_incr_model,
            allow_whole_table_reads=self._allow_whole_table_reads,
        )
        return exported


class FinalExporter(SavedModelExporter):
    """tf.estimator.FinalExporter: one export, when `max_steps` are trained."""

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Result,  # noqa: ARG002 - as tf.estimator has it
        is_the_final_export: bool,
    ) -> bytes | None:
        return self._save(estimator, export_path, checkpoint_path) if is_the_final_export else None


class LatestExporter(SavedModelExporter):
    """tf.estimator.LatestExporter: an export after every evaluation; the newest `exports_to_keep` stay (None: all)."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Any,
        assets_extra: Any = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
        *,
        save_incr_model: bool = False,
        allow_whole_table_reads: Collection[str] = (),
    ) -> None:
        super().__init__(
            name,
            serving_input_receiver_fn,
            assets_extra,
            as_text,
            save_incr_model=save_incr_model,
            allow_whole_table_reads=allow_whole_table_reads,
        )
        self._exports_to_keep = _checked_count(exports_to_keep)

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Result,  # noqa: ARG002 - as tf.estimator has it
        is_the_final_export: bool,  # noqa: ARG002 - as tf.estimator has it
    ) -> bytes | None:
        exported = self._save(estimator, export_path, checkpoint_path)
        _remove_old(Path(export_path), self._exports_to_keep)
        return exported


def loss_smaller(best_eval_result: Result, current_eval_result: Result) -> bool:
    """Whether the second is better."""
    return bool(current_eval_result["loss"] < best_eval_result["loss"])


class BestExporter(SavedModelExporter):
    """tf.estimator.BestExporter: an export when an evaluation is better than all before it.

    Those before it are read from `event_file_pattern` in the model's directory, so that a restart does not forget them;
    None: only those of this process count.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Any = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = loss_smaller,
        assets_extra: Any = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
        *,
        save_incr_model: bool = False,
        allow_whole_table_reads: Collection[str] = (),
    ) -> None:
        super().__init__(
            name,
            serving_input_receiver_fn,
            assets_extra,
            as_text,
            save_incr_model=save_incr_model,
            allow_whole_table_reads=allow_whole_table_reads,
        )
        self._event_file_pattern = event_file_pattern
        self._compare = _checked_comparison(compare_fn)
        self._exports_to_keep = _checked_count(exports_to_keep)
        self._model_dir: str | None = None
        self._best: Result | None = None

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Result,
        is_the_final_export: bool,  # noqa: ARG002 - as tf.estimator has it
    ) -> bytes | None:
        if self._model_dir != estimator.model_dir:
            self._model_dir = estimator.model_dir
            self._best = self._best_before(Path(estimator.model_dir), eval_result)
        if self._best is not None and not self._is_better(eval_result, self._best):
            return None
        exported = self._save(estimator, export_path, checkpoint_path)
        self._best = eval_result
        _remove_old(Path(export_path), self._exports_to_keep)
        return exported

    def _is_better(self, current: Result, best: Result) -> bool:
        return bool(self._compare(best_eval_result=best, current_eval_result=current))

    def _best_before(self, model_dir: Path, current: Result) -> Result | None:
        """The evaluation that is compared is in the files already, perhaps several times, and is not before itself."""
        best: Result | None = None
        if self._event_file_pattern is None:
            return best
        for step, result in read_results(model_dir, self._event_file_pattern):
            if step != current["global_step"] and (best is None or self._is_better(result, best)):
                best = result
        return best


def _checked_count(exports_to_keep: int | None) -> int | None:
    if exports_to_keep is not None and exports_to_keep < 1:
        raise ConfigurationError(
            f"exports_to_keep is {exports_to_keep}", hint="give a number of at least 1, or None to keep all"
        )
    return exports_to_keep


def _checked_comparison(compare_fn: Any) -> Any:
    names = tuple(inspect.signature(compare_fn).parameters) if callable(compare_fn) else ()
    if set(names) != set(COMPARED):
        raise ConfigurationError(
            f"compare_fn is {compare_fn!r} with the arguments {names}",
            hint=f"give a function of {' and '.join(COMPARED)}",
        )
    return compare_fn


def _remove_old(export_dir: Path, kept: int | None) -> None:
    """The newest have the largest numbers; what is called otherwise is not ours."""
    versions = sorted(path for path in export_dir.iterdir() if re.fullmatch(r"[0-9]{10}", path.name))
    for path in versions[: -kept if kept else 0]:
        # Another process may remove it, too.
        shutil.rmtree(path, ignore_errors=True)
