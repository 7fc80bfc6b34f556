"""What we use of other libraries without their promise: each name is still there, and is used in adapters alone.

A release that takes one away fails here, with the name and with the function that needs it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from tests.foreign_names import Finding, find_foreign_names

ROOT = Path(__file__).resolve().parent.parent

# By library: where the name is (a module, a class or a function of it), the names, and what needs them.
KERAS = {
    "keras:Variable": {
        "_value": "value_of",
        "_initialize": "MakesItsVariable",
        "_initialize_with_initializer": "MakesItsVariable",
    },
    "keras:Layer": {
        "_flatten_layers": "all_layers",
        "_layers": "children_of",
        "_trainable_variables": "variables_of",
        "_non_trainable_variables": "variables_of",
        "_seed_generators": "seed_generators_of",
        "_build_shapes_dict": "shapes_of_first_call",
        "_metrics": "CHILDREN",
        "_call_has_context_arg": "BOOKKEEPING",
        "_inbound_nodes": "BOOKKEEPING",
        "_losses": "BOOKKEEPING",
        "_losses_override": "BOOKKEEPING",
        "_outbound_nodes": "BOOKKEEPING",
        "call_signature_parameters": "BOOKKEEPING",
    },
    "keras.src.models.functional:Functional": {
        "_operations": "has_graph_of_layers",
        "_inputs": "BOOKKEEPING",
        "_nodes_by_depth": "BOOKKEEPING",
        "_operations_by_depth": "BOOKKEEPING",
        "_outputs": "BOOKKEEPING",
        "output_names": "BOOKKEEPING",
    },
    "keras:Sequential": {"_functional": "has_graph_of_layers"},
    "keras.src.ops.node:Node": {"_keras_history": "origin_of"},
    "keras.src.ops.node:KerasHistory": {"operation": "origin_of"},
    "keras.layers:Embedding": {
        "_embeddings": "table_of",
        "lora_enabled": "low_rank_of",
        "lora_embeddings_a": "low_rank_of",
        "lora_embeddings_b": "low_rank_of",
        "lora_alpha": "low_rank_of",
        "lora_rank": "low_rank_of",
    },
    "keras.layers:TextVectorization": {"_lookup_layer": "lookup_layer_of"},
    "keras:Model": {
        "_compiled_trainable_state": "BOOKKEEPING",
        "train_function": "training_function",
        "make_train_function": "remake_training_function",
        "test_function": "remake_other_functions",
        "make_test_function": "remake_other_functions",
        "predict_function": "remake_other_functions",
        "make_predict_function": "remake_other_functions",
    },
    "keras:Model._make_function": {
        "one_step_on_data": "ONE_STEP",
        "multi_step_on_iterator": "TRAINING_FUNCTIONS",
    },
    "keras:Model.fit": {"epoch_iterator": "element_spec_of_fit"},
    "keras.src.backend.tensorflow.trainer:TFEpochIterator": {"_distributed_dataset": "element_spec_of_fit"},
    "keras.optimizers:Optimizer": {
        "_trainable_variables": "trained_by",
        "_variables": "list_in_optimizer",
        "_iterations": "step_counter_of",
        "_distribution_strategy": "strategy_of",
        "_var_key": "key_in",
        "_get_variable_index": "slot_of",
        "_use_weight_decay": "is_decayed",
        "_clip_gradients": "ClipsThroughMethod",
        "_apply_weight_decay": "LeavesDecayToStep",
    },
    "keras.optimizers:LossScaleOptimizer": {"inner_optimizer": "wrapped_in"},
    "keras.src.optimizers.multi_optimizer:MultiOptimizer": {"optimizers": "optimizers_in"},
    "keras.optimizers:Adagrad": {"_accumulators": "Slot"},
    "keras.optimizers:Ftrl": {"_accumulators": "Slot", "_linears": "Slot"},
    "keras.optimizers:Adam": {"_momentums": "Slot", "_velocities": "Slot", "_velocity_hats": "Slot"},
    "keras.optimizers:SGD": {"momentums": "Slot"},
}

TENSORFLOW = {
    "tensorflow.core.config.flags": {"config": "save_graph_alone"},
    "tensorflow.core.config": {"flags": "save_graph_alone"},
    "tensorflow.core.config.flags:flags_pybind.Flags": {"saved_model_fingerprinting": "save_graph_alone"},
    "tensorflow.core.protobuf.config_pb2": {"CallableOptions": "make_callable"},
    "tensorflow.core.protobuf.saved_model_pb2": {"SavedModel": "SavedModel"},
    "tensorflow.core.protobuf.trackable_object_graph_pb2": {"TrackableObjectGraph": "TrackableObjectGraph"},
    "tensorflow.python.distribute.distribute_lib": {"_DefaultDistributionStrategy": "is_default_strategy"},
    "tensorflow.python.distribute.sharded_variable": {"ShardedVariable": "ShardedVariable"},
    "tensorflow.python.distribute.values": {"DistributedVariable": "DistributedVariable"},
    "tensorflow.python.distribute.values:DistributedVariable": {
        "_get": "local_copy",
        "_distributed_container": "all_copies",
    },
    "tensorflow.python.eager": {"context": "eager_context", "executor": "executor_apart"},
    "tensorflow.python.eager.context": {"eager_mode": "eager_context", "executor_scope": "executor_apart"},
    "tensorflow.python.eager.context:Context": {"get_server_def": "connected_cluster"},
    "tensorflow.python.eager.executor": {"new_executor": "executor_apart"},
    "tensorflow.python.feature_column": {"feature_column": "OpenDenseColumn"},
    "tensorflow.python.feature_column.feature_column": {
        "_DenseColumn": "OpenDenseColumn",
        "_CategoricalColumn": "OpenCategoricalColumn",
    },
    "tensorflow.python.feature_column.feature_column:_DenseColumn": dict.fromkeys(
        (
            "_get_dense_tensor",
            "_parse_example_spec",
            "_transform_feature",
            "_var_scope_name",
            "_variable_shape",
        ),
        "OpenDenseColumn",
    ),
    "tensorflow.python.feature_column.feature_column:_CategoricalColumn": {
        "_get_sparse_tensors": "OpenCategoricalColumn",
        "_num_buckets": "OpenCategoricalColumn",
        "IdWeightPair": "OpenCategoricalColumn",
    },
    "tensorflow.python.feature_column.feature_column_v2": {
        "_to_sparse_input_and_drop_ignore_values": "sparse_input"
    },
    "tensorflow.python.framework": {"op_def_registry": "find_operation_definition"},
    "tensorflow.python.framework.op_def_registry": {"get": "find_operation_definition"},
    "tensorflow.python.framework.func_graph": {
        "FuncGraph": "is_traced_function",
        "func_graph_from_py_func": "trace_once",
    },
    "tensorflow.python.framework.func_graph:FuncGraph": {
        "outer_graph": "function_around",
        "building_function": "function_around",
    },
    "tensorflow.python.framework.tensor:TensorSpec.placeholder_value": {
        "_user_specified_name": "name_of_input"
    },
    "tensorflow.python.ops.control_flow_util": {"GraphOrParentsInXlaContext": "is_compiled_by_xla"},
    "tensorflow.python.ops.resource_variable_ops": {
        "ResourceVariable": "ResourceVariable",
        "UninitializedVariable": "UninitializedVariable",
    },
    "tensorflow.python.ops.resource_variable_ops:ResourceVariable": {
        "_restore_from_tensors": "PRIVATE_WRITES",
        "_strided_slice_assign": "PRIVATE_WRITES",
        "_graph_element": "value_in_graph",
        "_save_slice_info": "slice_info",
    },
    "tensorflow.python.ops.ref_variable:RefVariable": {
        "_ref": "reference_of",
        "_save_slice_info": "slice_info",
    },
    "tensorflow.python.ops.variables": {"PartitionedVariable": "PartitionedVariable"},
    "tensorflow.python.ops.variables:PartitionedVariable": {"_get_variable_list": "parts_of_partitioned"},
    "tensorflow.python.saved_model.fingerprinting_utils": {"write_fingerprint": "renew_fingerprint"},
    "tensorflow.python.saved_model.loader_impl": {"SavedModelLoader": "load_into_session"},
    "tensorflow.python.saved_model.save": {"save_and_return_nodes": "save_graph_alone"},
    "tensorflow.python.training": {"slot_creator": "make_slots_by"},
    "tensorflow.python.training.slot_creator": dict.fromkeys(
        ("create_slot", "create_slot_with_initializer", "create_zeros_slot"), "make_slots_by"
    ),
    "tensorflow.python.training.saving": {"saveable_object": "SaveableObject"},
    "tensorflow.python.training.saving.saveable_object": {
        "SaveableObject": "SaveableObject",
        "SaveSpec": "SaveSpec",
    },
    "tensorflow:Module": {"_flatten": "find_in_module"},
    "tensorflow:lookup.StaticVocabularyTable": {
        "_table": "known_words",
        "_num_oov_buckets": "count_of_unknown",
    },
    "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function": {
        "_clone": "without_traces"
    },
    "tensorflow:__internal__.tf2": {"enabled": "is_in_tensorflow_2"},
    "tensorflow:DType": {"_is_ref_dtype": "is_reference"},
    "tensorflow:Operation": {
        "_add_control_input": "run_before",
        "_get_control_flow_context": "is_in_control_flow",
        "_control_outputs": "waiting_for",
    },
    "tensorflow:Operation.colocation_groups": {"_class": "forget_colocation"},
    "tensorflow:Graph": {
        "_attr_scope": "attributes_for_new",
        "_device_function_stack": "without_devices",
        "_unsafe_unfinalize": "unfinalize",
    },
    "tensorflow:compat.v1.Session": {
        "_closed": "is_closed",
        "_make_callable_from_options": "make_callable",
    },
    "tensorflow:compat.v1.train.MonitoredSession": {
        "_tf_sess": "session_below",
        "_sess": "put_around_session",
    },
    "tensorflow:compat.v1.train.Saver": {
        "_is_built": "is_saver_built",
        "_var_list": "give_variables_to",
        "_max_to_keep": "kept_by",
        "_keep_checkpoint_every_n_hours": "kept_by",
    },
    "tensorflow:compat.v1.train.Scaffold": {
        "_saver": "OpenScaffold",
        "_init_op": "OpenScaffold",
        "_ready_op": "OpenScaffold",
    },
    "tensorflow:compat.v1.train.Optimizer": dict.fromkeys(
        (
            "_apply_dense",
            "_apply_sparse",
            "_create_slots",
            "_get_or_make_slot",
            "_get_or_make_slot_with_initializer",
            "_prepare",
            "_resource_apply_dense",
            "_resource_apply_sparse",
        ),
        "OpenOptimizer",
    ),
    "tensorflow:compat.v1.train.AdamOptimizer": dict.fromkeys(
        ("_beta1_t", "_beta2_t", "_epsilon_t", "_get_beta_accumulators", "_lr_t", "_resource_apply_sparse"),
        "OpenAdam",
    ),
    "tensorflow:compat.v1.train.ChiefSessionCreator": {"_scaffold": "scaffold_of", "_master": "master_of"},
    "tensorflow:compat.v1.train.WorkerSessionCreator": {"_scaffold": "scaffold_of", "_master": "master_of"},
    "tensorflow:compat.v1.train.CheckpointSaverHook": {
        "_checkpoint_dir": "hook_directory",
        "_listeners": "add_listeners",
        "_save": "OpenSaverHook",
        "_global_step_tensor": "OpenSaverHook",
        "_steps_per_run": "OpenSaverHook",
        "_save_graph_def": "OpenSaverHook",
        "_summary_writer": "OpenSaverHook",
        "_get_saver": "OpenSaverHook",
    },
    "tensorflow:compat.v1.train.Supervisor": {"_init_saver": "OpenSupervisor", "_logdir": "OpenSupervisor"},
}

UVICORN = {
    "uvicorn._types": {"ASGI3Application": "OpenHttpProtocol"},
    "uvicorn.protocols.http.flow_control": {
        "HIGH_WATER_LIMIT": "HIGH_WATER_LIMIT",
        "FlowControl": "FlowControl",
    },
    "uvicorn.protocols.http.flow_control:FlowControl": dict.fromkeys(
        ("pause_reading", "resume_reading", "write_paused"), "FlowControl"
    ),
    "uvicorn.protocols.http.httptools_impl": {
        "STATUS_LINE": "STATUS_LINE",
        "HttpToolsProtocol": "OpenHttpProtocol",
        "RequestResponseCycle": "RequestResponseCycle",
    },
    "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol": dict.fromkeys(
        (
            *(
                "_start_asgi_task",
                "_unset_keepalive_if_required",
                "connections",
                "cycle",
                "expect_100_continue",
            ),
            *("flow", "headers", "loop", "parser", "pipeline", "scope", "timeout_keep_alive"),
            *("timeout_keep_alive_handler", "timeout_keep_alive_task", "transport", "url"),
            *("on_body", "on_header", "on_headers_complete", "on_message_begin", "on_message_complete"),
            *("on_response_complete", "pause_writing", "resume_writing"),
        ),
        "OpenHttpProtocol",
    ),
    "uvicorn.protocols.http.httptools_impl:RequestResponseCycle": dict.fromkeys(
        (
            *("body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete"),
            *("response_started", "scope", "transport", "waiting_for_100_continue"),
        ),
        "RequestResponseCycle",
    ),
}

WATCHDOG = {
    "watchdog.observers.inotify_c": {
        "CallbackId": "InotifyReader",
        "InotifyConstants": "InotifyReader",
        "InotifyEvent": "InotifyEvent",
        "InotifyFD": "InotifyReader",
        "Mask": "InotifyReader",
        "WatchCallback": "WatchCallback",
        "WatchDescriptor": "WatchDescriptor",
    },
    "watchdog.observers.inotify_c:InotifyFD": dict.fromkeys(
        ("add_callback", "remove_callbacks", "start", "stop", "join", "name"), "InotifyReader"
    ),
    "watchdog.observers.inotify_c:InotifyConstants": dict.fromkeys(
        ("IN_CREATE", "IN_MOVED_TO", "IN_CLOSE_WRITE", "IN_ONLYDIR"), "InotifyReader"
    ),
    "watchdog.observers.inotify_c:InotifyEvent": {"name": "InotifyEvent"},
    "watchdog.observers.inotify_c:WatchCallback": dict.fromkeys(
        ("on_event", "on_watch_deleted", "on_queue_overflow"), "WatchCallback"
    ),
}

TABLES = {
    "hotdelta.keras_internals": KERAS,
    "hotdelta.tensorflow_internals": TENSORFLOW,
    "server.http.uvicorn_internals": UVICORN,
    "loader.follow.watchdog_internals": WATCHDOG,
}
# They are subclasses of, or called by, what comes from an adapter, and work with its names.
WORKS_WITH = {
    "server.http.uvicorn_internals": "server.http.protocol",
    "loader.follow.watchdog_internals": "loader.follow.watch",
}
# Not private by their spelling, and still of Keras alone: nobody else may call an attribute so.
UNMISTAKABLE = frozenset(
    {"train_function", "make_train_function", "test_function", "make_test_function", "predict_function"}
    | {"make_predict_function", "inner_optimizer", "lora_embeddings_a", "lora_embeddings_b"}
)


@dataclass(frozen=True, slots=True)
class PrivateName:
    adapter: str
    holder: str
    name: str
    needed_by: str

    def __str__(self) -> str:
        return f"{self.holder}.{self.name}"


NAMES = [
    PrivateName(adapter, holder, name, needed_by)
    for adapter, table in TABLES.items()
    for holder, names in table.items()
    for name, needed_by in names.items()
]
KNOWN = {each.name for each in NAMES if each.name.startswith("_")} | UNMISTAKABLE


@pytest.mark.parametrize("each", NAMES, ids=str)
def test_the_installed_release_has_the_name(each: PrivateName) -> None:
    assert each.name in _names_in(each.holder), (
        f"{_version(each.holder)} has no {each.name} in {each.holder}: see what has taken its place, "
        f"and change {each.needed_by} of {each.adapter}"
    )


@pytest.mark.parametrize("adapter", TABLES)
def test_the_table_has_every_name_that_an_adapter_uses(adapter: str) -> None:
    used = {re.split(r"\W", each.name)[-1] for each in _found_everywhere() if each.module == adapter}
    assert used
    assert used <= {each.name for each in NAMES if each.adapter == adapter}


@pytest.mark.parametrize("each", NAMES, ids=str)
def test_the_table_says_who_needs_a_name(each: PrivateName) -> None:
    users = [each.adapter, *(user for name, user in WORKS_WITH.items() if name == each.adapter)]
    sources = "".join(ROOT.joinpath(*user.split(".")).with_suffix(".py").read_text() for user in users)
    assert re.search(rf"\b{each.name}\b", sources), f"nothing uses {each}: take it out of the table"
    assert hasattr(importlib.import_module(each.adapter), each.needed_by)


def test_private_names_are_used_in_adapters_alone() -> None:
    found = find_foreign_names(ROOT, known=KNOWN, adapters=TABLES)
    assert not found, "give an adapter a function that does what is wanted here:\n" + "\n".join(
        map(str, found)
    )


def test_no_class_of_ours_shares_a_private_name_with_a_base_of_another_library() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.foreign_bases"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    shared = done.stdout.splitlines()
    assert [line for line in shared if line.partition(":")[0] not in TABLES] == []
    # It looks where it should.
    assert "hotdelta.tensorflow_internals: OpenSaverHook._save" in shared


@pytest.mark.parametrize(
    "library", ["fastapi", "httptools", "keras", "starlette", "tensorflow", "uvicorn", "watchdog"]
)
def test_the_upper_bound_is_the_first_release_that_was_not_tested(library: str) -> None:
    """The lock's are the versions that are tested: who moves it moves the bound."""
    lock = (ROOT / "requirements" / "lock.txt").read_text()
    major, minor = re.findall(rf"^{library}==(\d+)\.(\d+)", lock, re.MULTILINE)[0]
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (requirement,) = (each for each in wanted if re.match(rf"{library}(?![\w-])", each))
    assert requirement.partition(";")[0].endswith(f",<{major}.{int(minor) + 1}")


_SAMPLE = """
import os
import tensorflow as tf
from tensorflow.python.eager import context
from uvicorn.protocols.http.flow_control import FlowControl
from loader.other import Ours

class Table(tf.Module):
    _rows: int

    def __init__(self, layer, path):
        self._own = layer._layers
        self._flatten(path)
        getattr(layer, "_value")
        vars(layer)["_metrics"] = self._rows
        super()._save(self._own)
        layer.train_function(path)
        os._exit(Ours._hotdelta_mark)

class Twin(Table):
    def equals(self, other):
        return self._own == other._own and super()._own
"""


def test_the_search_finds_every_way_to_use_a_private_name(tmp_path: Path) -> None:
    (tmp_path / "loader").mkdir()
    (tmp_path / "loader" / "sample.py").write_text(_SAMPLE)
    found = find_foreign_names(tmp_path, known=KNOWN, adapters=())
    assert [each.name for each in found] == [
        "tensorflow.python.eager.context",
        "uvicorn.protocols.http.flow_control.FlowControl",
        "layer._layers",
        "self._flatten",
        "_value",
        "'_value'",
        "'_metrics'",
        "self._rows",
        "super()._save",
        "layer.train_function",
    ]
    assert find_foreign_names(tmp_path, known=KNOWN, adapters={"loader.sample"}) == []


def test_a_name_that_is_gone_is_not_found() -> None:
    assert "_no_such_list" not in _names_in("keras:Layer")
    assert "no_such_function" not in _names_in("tensorflow.python.eager.context")
    assert "no_such_local" not in _names_in("keras:Model.fit")
    assert _names_in("keras.src.no_such_module") == _names_in("keras:NoSuchClass") == frozenset()


@cache
def _found_everywhere() -> list[Finding]:
    return find_foreign_names(ROOT, known=UNMISTAKABLE, adapters=())


@cache
def _names_in(holder: str) -> frozenset[str]:
    """Of a module or class what it has; of a class also what its methods set; of a function its locals and texts.

    Empty when there is no such thing.
    """
    module, _, path = holder.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split(".") if path else ():
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return frozenset()
    if isinstance(found, ModuleType):
        return frozenset(dir(found))
    if isinstance(found, type):
        return frozenset((*dir(found), *(name for kind in found.__mro__ for name in _set_by_methods(kind))))
    return frozenset(_names_in_code(inspect.unwrap(getattr(found, "fget", None) or found).__code__))


@cache
def _set_by_methods(kind: type) -> frozenset[str]:
    """Mostly on `self`; a strategy marks the copies of its variables, a node its tensors."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return frozenset()
    return frozenset(_find_set(tree))


def _find_set(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _names_in_code(code: CodeType) -> Iterator[str]:
    yield from (*code.co_varnames, *code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_name
            yield from _names_in_code(constant)
        elif isinstance(constant, str):
            yield constant


def _version(holder: str) -> str:
    """Of what is installed: TensorFlow has several distributions."""
    library = holder.partition(":")[0].partition(".")[0]
    (name, *_) = metadata.packages_distributions()[library]
    return f"{name} {metadata.version(name)}"
