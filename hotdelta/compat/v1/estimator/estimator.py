"""`tf.estimator.Estimator`: trains, evaluates, predicts and exports what a model function builds."""

from __future__ import annotations

import copy
import logging
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from hotdelta.compat.v1.chain.save_schedule import given_twice
from hotdelta.compat.v1.estimator.export_job import ExportJob, refuse_extras
from hotdelta.compat.v1.estimator.inference import (
    Checkpoint,
    run_evaluation,
    run_prediction,
    single_examples,
    write_summary,
)
from hotdelta.compat.v1.estimator.input_data import call_with_known, read_input
from hotdelta.compat.v1.estimator.run_config import RunConfig
from hotdelta.compat.v1.estimator.spec import EstimatorSpec, ModeKeys
from hotdelta.compat.v1.estimator.training import run_training
from hotdelta.compat.v1.estimator.warm_start import WarmStartSettings, to_settings, warm_start
from hotdelta.compat.v1.restore.restoring import find_meant, find_meant_full, highest_step
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import refuse_nested, to_directory
from hotdelta.logs import event
from hotdelta.remote.publish.resuming import bring_in
from hotdelta.remote.publish.spool import to_run_directory
from hotdelta.train.checkpoint_config import CheckpointConfig

logger = logging.getLogger(__name__)
v1 = tf.compat.v1


class Estimator:
    """A model function with a directory for its checkpoints. Each call builds a graph of its own."""

    def __init__(
        self,
        model_fn: Any,
        model_dir: str | CheckpointConfig | None = None,
        config: RunConfig | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: str | Path | WarmStartSettings | None = None,
    ) -> None:
        """Raises ConfigurationError when a CheckpointConfig and a RunConfig both say when to save.

        `warm_start_from` is for the first training: where `model_dir` has a checkpoint, that is gone on from.
        """
        if isinstance(model_dir, CheckpointConfig):
            if config is not None:
                raise given_twice()
            config, model_dir = RunConfig(model_dir=model_dir), None
        config = config or RunConfig()
        self._model_dir = str(
            to_run_directory(model_dir or config.model_dir or _temporary_directory(), name="model_dir")
        )
        self._config = config.replace(model_dir=self._model_dir)
        self._model_fn = model_fn
        self._params = dict(params or {})
        self._warm_start = to_settings(warm_start_from)

    @property
    def model_dir(self) -> str:
        return self._model_dir

    @property
    def config(self) -> RunConfig:
        return self._config

    @property
    def params(self) -> dict[str, Any]:
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Any:
        return self._model_fn

    def eval_dir(self, name: str | None = None) -> str:
        """Where the event files of evaluations of that name are."""
        return str(Path(self._model_dir) / (f"eval_{name}" if name else "eval"))

    def latest_checkpoint(self) -> str | None:
        bring_in(Path(self._model_dir))
        path: str | None = tf.train.latest_checkpoint(self._model_dir)
        return path

    def get_variable_names(self) -> list[str]:
        return [name for name, _ in tf.train.list_variables(self._existing_checkpoint(None))]

    def get_variable_value(self, name: str) -> Any:
        """As of the newest full checkpoint. Raises ChainError when that is damaged."""
        path = self._existing_checkpoint(None)
        find_meant_full(path)
        return tf.train.load_variable(path, name)

    def train(
        self,
        input_fn: Any,
        hooks: Any = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Any = None,
    ) -> Estimator:
        """`steps` more steps, or until `max_steps` in all, or until the input ends."""
        if steps is not None and max_steps is not None:
            raise ConfigurationError("steps and max_steps are both given", hint="give one of them")
        if max_steps is not None and self._is_trained_to(max_steps):
            event(logger, logging.INFO, "training is over already", max_steps=max_steps)
            return self
        extra_hooks = list(hooks or [])
        if steps is not None or max_steps is not None:
            extra_hooks.append(v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps))
        with v1.Graph().as_default(), v1.device(self._device_function()):
            v1.set_random_seed(self._config.tf_random_seed)
            v1.train.get_or_create_global_step()
            spec = self._build(ModeKeys.TRAIN, input_fn)
            if self._warm_start is not None and self.latest_checkpoint() is None:
                warm_start(self._warm_start)
            run_training(spec, self._config, hooks=extra_hooks, listeners=saving_listeners or ())
        return self

    def evaluate(
        self,
        input_fn: Any,
        steps: int | None = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """The metrics at the newest state, or just at a checkpoint; in `eval[_<name>]` for TensorBoard, too."""
        checkpoint = self._checkpoint(checkpoint_path)
        with v1.Graph().as_default():
            v1.train.get_or_create_global_step()
            spec = self._build(ModeKeys.EVAL, input_fn)
            config = self._config.session_config
            answer = run_evaluation(spec, checkpoint, steps=steps, hooks=hooks or (), config=config)
        write_summary(Path(self.eval_dir(name)), answer)
        return answer

    def predict(
        self,
        input_fn: Any,
        predict_keys: Any = None,
        hooks: Any = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """One prediction after another, each a dict when the model function says so."""
        checkpoint = self._checkpoint(checkpoint_path)
        with v1.Graph().as_default():
            v1.train.get_or_create_global_step()
            spec = self._build(ModeKeys.PREDICT, input_fn, with_labels=False)
            predictions = spec.predictions
            if predict_keys is not None:
                predictions = {key: predictions[key] for key in _as_list(predict_keys)}
            config = self._config.session_config
            for answers in run_prediction(spec, predictions, checkpoint, hooks=hooks or (), config=config):
                yield from single_examples(answers) if yield_single_examples else [answers]

    def export_saved_model(
        self,
        export_dir_base: str,
        serving_input_receiver_fn: Any,
        assets_extra: Any = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        save_incr_model: bool = False,
        allow_whole_table_reads: Collection[str] = (),
    ) -> bytes:
        """A SavedModel of the newest state in `export_dir_base/<seconds since 1970>`; returns its path.

        With `save_incr_model` it can take deltas, otherwise only full checkpoints. `allow_whole_table_reads`: the keys
        of tables that predictions may read whole.
        """
        refuse_extras(assets_extra, as_text=as_text)
        export_dir = to_directory(export_dir_base, "export_dir_base")
        if save_incr_model:
            refuse_nested(export_dir, Path(self._model_dir))
        checkpoint = self._checkpoint(checkpoint_path)
        job = ExportJob(Path(self._model_dir), checkpoint, tuple(allow_whole_table_reads))
        with v1.Graph().as_default():
            v1.train.get_or_create_global_step()
            receiver = serving_input_receiver_fn()
            spec = self._call_model_fn(receiver.features, None, ModeKeys.PREDICT)
            exported = job.run(receiver, spec, export_dir, save_incr_model=save_incr_model)
        return str(exported).encode()

    export_savedmodel = export_saved_model

    def _build(self, mode: str, input_fn: Any, *, with_labels: bool = True) -> EstimatorSpec:
        features, labels = read_input(input_fn, mode=mode, params=self.params, config=self._config)
        return self._call_model_fn(features, labels if with_labels else None, mode)

    def _call_model_fn(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        spec = call_with_known(
            self._model_fn,
            features=features,
            labels=labels,
            mode=mode,
            params=self.params,
            config=self._config,
        )
        if not isinstance(spec, EstimatorSpec):
            raise ConfigurationError(
                "the model function returns no EstimatorSpec", hint="return tf.estimator.EstimatorSpec"
            )
        return spec

    def _checkpoint(self, path: str | None) -> Checkpoint:
        return Checkpoint(self._existing_checkpoint(path), is_newest=path is None)

    def _existing_checkpoint(self, path: str | None) -> str:
        found = path or self.latest_checkpoint()
        if found is None:
            raise ConfigurationError(f"{self._model_dir} holds no checkpoint", hint="train first")
        return found

    def _is_trained_to(self, max_steps: int) -> bool:
        """Whether training would go on from there or later. Files are checked only when no restore will check them."""
        path = self.latest_checkpoint()
        if path is None:
            return max_steps <= 0
        highest = highest_step(path)
        if highest is not None and highest < max_steps:
            return False
        point = find_meant(path)
        step = point.newest.step if point else int(tf.train.load_variable(path, "global_step"))
        return step >= max_steps

    def _device_function(self) -> Any:
        if self._config.device_fn is not None or not self._config.num_ps_replicas:
            return self._config.device_fn
        worker = f"/job:{self._config.task_type}/task:{self._config.task_id}"
        return v1.train.replica_device_setter(worker_device=worker, cluster=self._config.cluster_spec)


def _temporary_directory() -> str:
    path = tempfile.mkdtemp()
    print(f"WARNING: Using temporary folder as model directory: {path}")
    return path


def _as_list(keys: Any) -> list[str]:
    return [keys] if isinstance(keys, str) else list(keys)
