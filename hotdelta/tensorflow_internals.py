"""All that hotdelta uses of TensorFlow without a promise that the next release still has it. No other module may.

Functions and classes say what the caller wants; the names of TensorFlow stay in here. tests/test_private_names.py looks
each of them up in the TensorFlow that is installed, and says which function needs the one that is gone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.config import flags
from tensorflow.core.protobuf.config_pb2 import CallableOptions
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.eager import context, executor
from tensorflow.python.feature_column import feature_column as old_columns
from tensorflow.python.feature_column.feature_column_v2 import _to_sparse_input_and_drop_ignore_values
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.func_graph import FuncGraph, func_graph_from_py_func
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
from tensorflow.python.ops.resource_variable_ops import ResourceVariable, UninitializedVariable
from tensorflow.python.ops.variables import PartitionedVariable
from tensorflow.python.saved_model.fingerprinting_utils import write_fingerprint
from tensorflow.python.saved_model.loader_impl import SavedModelLoader
from tensorflow.python.saved_model.save import save_and_return_nodes
from tensorflow.python.training import slot_creator
from tensorflow.python.training.saving import saveable_object

__all__ = (
    "DistributedVariable",
    "PartitionedVariable",
    "ResourceVariable",
    "SavedModel",
    "ShardedVariable",
    "TrackableObjectGraph",
    "UninitializedVariable",
)

v1 = tf.compat.v1

# Methods of a variable that write all of it: a restore, and what `variable[1:3].assign(...)` comes to.
PRIVATE_WRITES = ("_restore_from_tensors", "_strided_slice_assign")


# Variables, and the strategies that hold several copies of one.


def local_copy(variable: DistributedVariable) -> Any:
    """The copy of the replica that is being traced or updated here, the primary outside of replicas."""
    return variable._get()


def all_copies(variable: Any) -> tuple[Any, ...] | None:
    """Those of the variable of a strategy that `variable` is a copy for; None when it is none."""
    container = getattr(getattr(variable, "handle", None), "_distributed_container", None)
    owner = container() if container is not None else None
    return None if owner is None else tuple(owner.values)


def is_default_strategy(strategy: Any) -> bool:
    """Whether it stands for "no strategy", for which TensorFlow has no public name."""
    return type(strategy).__name__ == "_DefaultDistributionStrategy"


def reference_of(variable: Any) -> tf.Tensor:
    """The tensor through which operations of a graph reach a variable of TensorFlow 1 that has no handle."""
    return variable._ref()


def value_in_graph(variable: Any) -> tf.Tensor:
    """The tensor that reads a variable of a graph, the one that its look-ups share. Anything else is its own."""
    return variable._graph_element if hasattr(variable, "_graph_element") else variable


def is_partitioned(variable: Any) -> bool:
    return hasattr(variable, "_get_variable_list")


def parts_of_partitioned(variable: Any) -> list[Any]:
    return list(variable._get_variable_list())


def slice_info(variable: Any) -> Any:
    """Which part of a partitioned variable it is: full name and shape, offset and shape. None: it is whole."""
    return getattr(variable, "_save_slice_info", None)


# What a tf.Module holds.


def find_in_module(module: tf.Module, is_wanted: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """All that it and the modules in it hold and that is wanted, each with its path (`towers/0/table`).

    What is reached by several paths comes with each of them.
    """
    for path, found in module._flatten(predicate=is_wanted, with_path=True):
        yield "/".join(map(str, path)), found


def known_words(table: tf.lookup.StaticVocabularyTable) -> Any:
    """The table of the words that it knows; None: it hashes all of them."""
    return table._table


def count_of_unknown(table: tf.lookup.StaticVocabularyTable) -> int:
    """How many ids it has for words that it does not know."""
    return int(table._num_oov_buckets)


# Functions and their graphs.


def is_traced_function(graph: tf.Graph) -> bool:
    """The graph of a tf.function itself: no part of one (a branch, the body of a loop), and no graph of a Session."""
    return type(graph) is FuncGraph


def function_around(graph: tf.Graph) -> tf.Graph | None:
    """The graph of the function in which this one was traced, while it exists."""
    outer = getattr(graph, "outer_graph", None)
    return outer if getattr(outer, "building_function", False) else None


def trace_once(name: str, function: Callable[..., Any], argument: Any) -> None:
    """Trace a function of one argument and throw the trace away. A tf.function would be traced twice."""
    func_graph_from_py_func(name, tf.autograph.experimental.do_not_convert(function), (argument,), {})


def without_traces(function: Any) -> Any:
    """The same tf.function, never traced. Anything else is returned as it is."""
    return function._clone(None) if hasattr(function, "_clone") else function


def is_compiled_by_xla(graph: tf.Graph) -> bool:
    return bool(GraphOrParentsInXlaContext(graph))


def name_of_input(placeholder: tf.Operation) -> str:
    """What the signature calls the input of a traced function."""
    return str(placeholder.get_attr("_user_specified_name").decode())


def find_operation_definition(operation: str) -> Any:
    """The OpDef of an operation by its type; None when it is not known."""
    return op_def_registry.get(operation)


def forget_colocation(node: Any) -> None:
    """A NodeDef may name nodes on whose device it has to be, and they may not be where it is copied to."""
    node.attr.pop("_class", None)


# The process: eager or not, its cluster.


def add_module(name: str, module: ModuleType) -> None:
    """What a fork of TensorFlow has among its modules is found there, `tensorflow.python.<name>`."""
    sys.modules.setdefault(f"tensorflow.python.{name}", module)


def is_in_tensorflow_2() -> bool:
    """False after tf.compat.v1.disable_v2_behavior()."""
    return bool(tf.__internal__.tf2.enabled())


def eager_context() -> AbstractContextManager[None]:
    """Operations run at once inside, also in a process of graphs and Sessions."""
    mode: AbstractContextManager[None] = context.eager_mode()
    return mode


def connected_cluster() -> Any:
    """The ClusterDef that this process is connected to; None: to none."""
    connected = context.context().get_server_def()
    return connected.cluster if connected else None


# By default no more than the physical memory, as if all that is reserved were used.
_MOST_BYTES_VARIABLE = "TF_MKL_ALLOC_MAX_BYTES"
UNBOUNDED_BYTES = 1 << 46
_USUAL_BYTES = 1 << 30
_reserving = {"bytes": 0}


def allow_reserving(nbytes: int) -> None:
    """This process is about to reserve so much memory more, of which it will write little.

    TensorFlow reads the limit when it first allocates anything; after that it cannot be told.
    """
    _reserving["bytes"] += nbytes
    if _reserving["bytes"] > _USUAL_BYTES:
        os.environ.setdefault(_MOST_BYTES_VARIABLE, str(UNBOUNDED_BYTES))


def executor_apart() -> AbstractContextManager[None]:
    """TensorFlow tells the failure of an operation on a server to whoever shares its executor. Nobody shares this."""
    scope: AbstractContextManager[None] = context.executor_scope(executor.new_executor(enable_async=False))
    return scope


# SavedModels.


def save_graph_alone(root: Any, directory: Path, *, signatures: Mapping[str, Any]) -> None:
    """A SavedModel without the values of its variables."""
    with _without_fingerprint():
        save_and_return_nodes(root, str(directory), signatures=signatures, experimental_skip_checkpoint=True)


@contextmanager
def _without_fingerprint() -> Iterator[None]:
    """TensorFlow would look for the checkpoint that is left out, and warn that it "failed to read checkpoint file"."""
    flag = flags.config().saved_model_fingerprinting
    before = flag.value()
    flag.reset(False)
    try:
        yield
    finally:
        flag.reset(before)


def renew_fingerprint(directory: Path) -> None:
    """After a change of its saved_model.pb."""
    write_fingerprint(str(directory))


def load_into_session(session: Any, directory: Path) -> Any:
    """What tf.compat.v1.saved_model.load does, without its line about deprecation. Returns the MetaGraphDef."""
    return SavedModelLoader(str(directory)).load(session, [tf.saved_model.SERVING])


# Graphs of TensorFlow 1.


def is_reference(tensor: tf.Tensor) -> bool:
    """Whether operations that take it write to the variable that it comes from."""
    return bool(tensor.dtype._is_ref_dtype)


def run_before(operation: tf.Operation, first: tf.Operation) -> None:
    """From now on, whoever runs `operation` runs `first` before it."""
    operation._add_control_input(first)


def is_in_control_flow(operation: tf.Operation) -> bool:
    """Whether it is inside of a cond or a loop of TensorFlow 1."""
    return operation._get_control_flow_context() is not None


def waiting_for(operation: tf.Operation) -> list[tf.Operation]:
    """The operations that have it as a control input."""
    return list(operation._control_outputs)


def attributes_for_new(graph: tf.Graph, attributes: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Every operation that is added to the graph inside has these attributes."""
    scope: AbstractContextManager[None] = graph._attr_scope(dict(attributes))
    return scope


@contextmanager
def without_devices(graph: tf.Graph) -> Iterator[None]:
    """What is traced inside has no devices, whatever scopes are open: a call of it runs where the call is put."""
    before = graph._device_function_stack
    graph._device_function_stack = type(before)()
    try:
        yield
    finally:
        graph._device_function_stack = before


def unfinalize(graph: tf.Graph) -> None:
    graph._unsafe_unfinalize()


# Sessions.


def session_below(session: Any) -> Any:
    """The Session of a MonitoredSession, None when it has ended; a plain one is its own."""
    find = getattr(session, "_tf_sess", None)
    return session if find is None else find()


def is_closed(session: Any) -> bool:
    return bool(session._closed)


def put_around_session(session: Any, wrap: Callable[[Any], Any]) -> None:
    """A MonitoredSession makes all its calls through what `wrap` returns for the one that it made them through."""
    session._sess = wrap(session._sess)


def make_callable(
    session: Any, *, feeds: Sequence[str], fetches: Sequence[str], pool: int
) -> Callable[..., Sequence[Any]]:
    """A call with values for the feeds, in this order.

    The public make_callable takes no thread pool and costs 225 us; this 35 in a pool, 7 in the caller thread.
    """
    options = CallableOptions(feed=feeds, fetch=fetches)
    options.run_options.inter_op_thread_pool = pool
    call: Callable[..., Sequence[Any]] = session._make_callable_from_options(options)
    return call


# Classes of tf.compat.v1.train whose attributes are needed: each with names for those.


def is_saver_built(saver: Any) -> bool:
    return bool(saver._is_built)


# What a Saver saves of something that is no plain variable, and how it is named and placed.
SaveableObject = saveable_object.SaveableObject
SaveSpec = saveable_object.SaveSpec


def give_variables_to(saver: Any, variables: Any) -> None:
    """In place of its `var_list`, before it is built."""
    saver._var_list = variables


def kept_by(saver: Any) -> tuple[Any, Any]:
    """Its `max_to_keep` and `keep_checkpoint_every_n_hours` as they were given."""
    return saver._max_to_keep, saver._keep_checkpoint_every_n_hours


def hook_directory(hook: Any) -> Path:
    """Where a CheckpointSaverHook saves."""
    return Path(hook._checkpoint_dir)


def add_listeners(hook: Any, listeners: Iterable[Any]) -> None:
    """To a CheckpointSaverHook that was made already."""
    hook._listeners = [*hook._listeners, *listeners]


def scaffold_of(creator: Any) -> Any:
    """That of a ChiefSessionCreator or WorkerSessionCreator."""
    return creator._scaffold


def master_of(creator: Any) -> str:
    """Where such a one makes its Sessions; empty in this process."""
    return str(creator._master)


class OpenScaffold(tf.compat.v1.train.Scaffold):
    """tf.train.Scaffold for subclasses: what it was given, or made itself, may be replaced."""

    def set_saver(self, saver: Any) -> None:
        self._saver = saver

    def set_operations(self, *, init: Any, ready: Any) -> None:
        """What initializes, and what tells which variables are not initialized."""
        self._init_op, self._ready_op = init, ready


class OpenOptimizer(tf.compat.v1.train.Optimizer):
    """tf.train.Optimizer for subclasses that treat reference and resource variables alike."""

    def make_slots(self, variable: Any) -> None:
        """With `add_slot` and `add_number`."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Called before the updates of a step are built."""

    def update_all(self, variable: Any, grad: tf.Tensor) -> tf.Operation:
        raise NotImplementedError

    def update_rows(self, variable: Any, ids: tf.Tensor, grad: tf.Tensor) -> tf.Operation:
        """Each id is there once, with the sum of its gradients."""
        raise NotImplementedError

    def add_slot(self, variable: Any, name: str, first: float, *, shape: Any, dtype: tf.DType) -> Any:
        """A variable of this shape, which begins with `first` everywhere."""
        initializer = v1.constant_initializer(first, dtype)
        return self._get_or_make_slot_with_initializer(
            variable, initializer, shape, dtype, name, self.get_name()
        )

    def add_number(self, variable: Any, name: str, first: tf.Tensor) -> Any:
        """A scalar variable, which begins with `first`."""
        return self._get_or_make_slot(variable, first, name, self.get_name())

    def _create_slots(self, var_list: Iterable[Any]) -> None:
        for variable in var_list:
            self.make_slots(variable)

    def _prepare(self) -> None:
        self.prepare()

    def _apply_dense(self, grad: tf.Tensor, var: Any) -> tf.Operation:
        return self.update_all(var, grad)

    def _resource_apply_dense(self, grad: tf.Tensor, handle: Any) -> tf.Operation:
        return self.update_all(handle, grad)

    def _apply_sparse(self, grad: tf.IndexedSlices, var: Any) -> tf.Operation:
        return self.update_rows(var, grad.indices, grad.values)

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> tf.Operation:
        return self.update_rows(handle, indices, grad)


class OpenAdam(tf.compat.v1.train.AdamOptimizer):
    """tf.train.AdamOptimizer that lets a subclass update the rows of a variable."""

    def update_rows(self, variable: Any, ids: tf.Tensor, grad: tf.Tensor) -> tf.Operation | None:
        """Each id is there once, with the sum of its gradients. None: as tf.train does it, which writes all rows."""
        raise NotImplementedError

    def numbers(self, dtype: tf.DType) -> list[tf.Tensor]:
        """Learning rate, beta1, beta2, epsilon and the powers of the betas."""
        prepared = [self._lr_t, self._beta1_t, self._beta2_t, self._epsilon_t, *self._get_beta_accumulators()]
        return [tf.cast(number, dtype) for number in prepared]

    def _resource_apply_sparse(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> Any:
        updated = self.update_rows(handle, indices, grad)
        return super()._resource_apply_sparse(grad, handle, indices) if updated is None else updated


Reserve = Callable[[Any, Callable[[], Any], str, Any], Any]


def make_slots_by(reserve: Reserve) -> None:
    """From now on all optimizers of tf.train ask `reserve(variable, first_row, name, shape)` for a slot.

    `first_row()` is what its rows begin with, as numpy. None: tf.train makes the slot.
    """
    create, create_with, create_zeros = (
        slot_creator.create_slot,
        slot_creator.create_slot_with_initializer,
        slot_creator.create_zeros_slot,
    )

    def of_value(primary: Any, val: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        made = reserve(primary, lambda: _first_row_of(val), name, val.shape)
        return create(primary, val, name, *args, **kwargs) if made is None else made

    def of_initializer(
        primary: Any, initializer: Any, shape: Any, dtype: Any, name: str, *args: Any, **kwargs: Any
    ) -> Any:
        def first_row() -> Any:
            with context.eager_mode(), tf.device(None):
                return initializer((1, *(int(size) for size in shape[1:])), dtype=dtype.base_dtype).numpy()[0]

        made = reserve(primary, first_row, name, shape)
        return (
            create_with(primary, initializer, shape, dtype, name, *args, **kwargs) if made is None else made
        )

    def of_zeros(primary: Any, name: str, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        def first_row() -> Any:
            wanted = tf.as_dtype(dtype or primary.dtype).base_dtype.as_numpy_dtype
            return np.zeros([int(size) for size in primary.shape[1:]], wanted)

        made = reserve(primary, first_row, name, primary.shape)
        return create_zeros(primary, name, dtype, *args, **kwargs) if made is None else made

    slot_creator.create_slot = of_value
    slot_creator.create_slot_with_initializer = of_initializer
    slot_creator.create_zeros_slot = of_zeros


def _first_row_of(constant: tf.Tensor) -> Any:
    """Of a constant tensor that has the same value everywhere: read from its definition, which holds it once."""
    value = constant.op.get_attr("value")
    scalar = type(value)()
    scalar.CopyFrom(value)
    scalar.tensor_shape.Clear()
    return np.broadcast_to(tf.make_ndarray(scalar), [int(size) for size in constant.shape[1:]])


# Columns of tf.feature_column.input_layer.


class OpenCategoricalColumn(old_columns._CategoricalColumn):
    """A column of ids, for subclasses."""

    def parse_spec(self) -> Any:
        raise NotImplementedError

    def transform(self, inputs: Any) -> tf.SparseTensor:
        """The ids; `inputs.get` gives a feature by its key, or what a column made of it."""
        raise NotImplementedError

    def refuse_numbers(self) -> int:
        """Somebody wants to know how many ids there are."""
        raise NotImplementedError

    @property
    def _parse_example_spec(self) -> Any:
        return self.parse_spec()

    def _transform_feature(self, inputs: Any) -> tf.SparseTensor:
        return self.transform(inputs)

    @property
    def _num_buckets(self) -> int:
        return self.refuse_numbers()

    def _get_sparse_tensors(
        self,
        inputs: Any,
        weight_collections: Any = None,  # noqa: ARG002 - it makes no variable
        trainable: Any = None,  # noqa: ARG002 - the same
    ) -> Any:
        return self.IdWeightPair(inputs.get(self), None)


class OpenDenseColumn(old_columns._DenseColumn):
    """A column of numbers that come from another one, for subclasses."""

    def __init__(self, below: Any, shape: tf.TensorShape) -> None:
        self.categorical_column = below
        self._shape = shape

    def scope_name(self) -> str:
        """Of its variables."""
        raise NotImplementedError

    def dense(self, ids: Any, weights: Any, *, collections: Any, is_trainable: bool) -> tf.Tensor:
        raise NotImplementedError

    @property
    def _var_scope_name(self) -> str:
        return self.scope_name()

    @property
    def _parse_example_spec(self) -> Any:
        return self.categorical_column._parse_example_spec

    def _transform_feature(self, inputs: Any) -> Any:
        return inputs.get(self.categorical_column)

    @property
    def _variable_shape(self) -> tf.TensorShape:
        return self._shape

    def _get_dense_tensor(
        self, inputs: Any, weight_collections: Any = None, trainable: Any = None
    ) -> tf.Tensor:
        pair = self.categorical_column._get_sparse_tensors(inputs, weight_collections, trainable)
        is_trainable = trainable is not False
        return self.dense(
            pair.id_tensor, pair.weight_tensor, collections=weight_collections, is_trainable=is_trainable
        )


def sparse_input(tensor: Any) -> tf.SparseTensor:
    """A feature as columns take it: of a dense one, what is not empty."""
    return _to_sparse_input_and_drop_ignore_values(tensor)


class OpenSaverHook(tf.compat.v1.train.CheckpointSaverHook):
    """tf.train.CheckpointSaverHook for subclasses: `save` may be replaced."""

    def save(self, session: Any, step: int) -> bool:
        """Returns whether a listener wants training to stop."""
        return bool(super()._save(session, step))

    def _save(self, session: Any, step: int) -> bool:
        return self.save(session, step)

    @property
    def checkpoint_dir(self) -> str:
        return str(self._checkpoint_dir)

    @property
    def listeners(self) -> Sequence[Any]:
        found: Sequence[Any] = self._listeners
        return found

    @property
    def step_tensor(self) -> Any:
        """None before `begin`."""
        return self._global_step_tensor

    @property
    def steps_per_run(self) -> int:
        return int(self._steps_per_run)

    @property
    def saves_graph(self) -> bool:
        return bool(self._save_graph_def)

    @property
    def summary_writer(self) -> Any:
        return self._summary_writer

    def find_saver(self) -> Any:
        """The one that it was given, that of its scaffold or that of the graph."""
        return self._get_saver()


class OpenSupervisor(tf.compat.v1.train.Supervisor):
    """tf.train.Supervisor for subclasses: `before_saver` is called before it looks for its Saver, or makes one."""

    def before_saver(self, saver: Any) -> None:
        """`saver`: as it was given, USE_DEFAULT when it was not."""

    def _init_saver(self, saver: Any = tf.compat.v1.train.Supervisor.USE_DEFAULT) -> None:
        self.before_saver(saver)
        super()._init_saver(saver)

    @property
    def directory(self) -> str | None:
        """None: it saves nothing."""
        found: str | None = self._logdir
        return found
