"""Looks at the values that an export itself holds, in its files and chunk by chunk, before anybody is served them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import tensorflow as tf

from hotdelta import signatures as contract
from hotdelta.chain import Node, Position, VariableSpec
from hotdelta.chain.bundle.reader import BundleRows
from hotdelta.errors import ApplyError
from hotdelta.export_metadata import ExportMetadata
from hotdelta.logs import event
from hotdelta.sanity_limits import SanitySettings
from hotdelta.signature_calls import array_dtype
from hotdelta.tensorflow_internals import TrackableObjectGraph
from loader.checks.sanity import Figures, judge_values
from loader.checks.sanity_figures import measure
from loader.checks.sanity_gate import measured_variables, whole_chunks
from loader.exports.versions import ExportVersion
from loader.standing_orders import Orders
from loader.status import Quarantined
from loader.update_figures import BAD_VALUES

logger = logging.getLogger(__name__)

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "VARIABLE_VALUE"


def measure_values(path: Path, metadata: ExportMetadata) -> dict[str, Figures]:
    """Raises ApplyError when the variables cannot be found, DamagedError when they cannot be read."""
    prefix = path / "variables" / "variables"
    with BundleRows(prefix, dtype_of=array_dtype) as bundle:
        return {
            spec.key: measure(whole_chunks(bundle, tensor, _as_stored(bundle, tensor, spec, metadata)))
            for spec, tensor in _stored_variables(prefix, metadata)
        }


def require_limits_fit(settings: SanitySettings, metadata: ExportMetadata) -> None:
    """A limit for a variable that does not exist would guard nothing, and nobody would know. Raises ApplyError."""
    keys = {spec.key for spec in metadata.schema.variables}
    unknown = sorted(settings.by_key.keys() - keys)
    if unknown:
        raise ApplyError(
            f"a sanity limit is for {unknown[0]!r}, which the model does not have",
            hint=f"correct --sanity; the model has {', '.join(sorted(keys))}",
        )


def find_bad_values(
    figures: Mapping[str, Figures], metadata: ExportMetadata, settings: SanitySettings
) -> str:
    """What is wrong with the values, or nothing. Statistics of updates say nothing here: absolute limits only."""
    for spec in measured_variables(metadata.schema):
        limits = settings.limits_of(spec.key, is_table=spec.is_table)
        complaint = judge_values(figures[spec.key], limits, None)
        if complaint:
            return f"{spec.key!r}: {complaint}"
    return ""


def _stored_variables(prefix: Path, metadata: ExportMetadata) -> Iterator[tuple[VariableSpec, str]]:
    """Each variable whose values can be bad, and the name of its tensor: TensorFlow names them after objects."""
    graph = TrackableObjectGraph()
    try:
        graph.ParseFromString(tf.train.load_checkpoint(str(prefix)).get_tensor(_OBJECT_GRAPH))
        variables = _child(graph, 0, contract.VARIABLES_ATTRIBUTE)
        measured = measured_variables(metadata.schema)
        for index, spec in enumerate(metadata.schema.variables):
            if spec in measured:
                stored = graph.nodes[_child(graph, variables, str(index))].attributes
                yield spec, next(item.checkpoint_key for item in stored if item.name == _VALUE)
    except (tf.errors.OpError, RuntimeError, ValueError, LookupError, StopIteration) as error:
        raise ApplyError(f"{prefix} does not show its values: {error!r}", hint="export it again") from error


def _as_stored(bundle: BundleRows, tensor: str, spec: VariableSpec, metadata: ExportMetadata) -> VariableSpec:
    """A growing table is saved with the rows that are in use."""
    found = bundle.entries.get(tensor)
    if spec.key not in metadata.schema.growing or found is None:
        return spec
    if found.shape[1:] != spec.shape[1:] or not 0 < found.shape[0] <= spec.shape[0]:
        raise ApplyError(
            f"{spec.key!r} is stored as {list(found.shape)}, and the model reserves {list(spec.shape)}",
            hint="export it again",
        )
    return replace(spec, shape=found.shape)


def _child(graph: TrackableObjectGraph, node: int, name: str) -> int:
    for child in graph.nodes[node].children:
        if child.local_name == name:
            return int(child.node_id)
    raise LookupError(name)


@dataclass(frozen=True, slots=True)
class _BadExport:
    version: ExportVersion
    node: Node
    reason: str


class ExportQuarantine:
    """Versions whose own values must not be served; a full may still be loaded into them.

    Belongs to the updater thread; `listed` may be read by any.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._bad: dict[ExportVersion, _BadExport] = {}
        self._held: dict[ExportVersion, _BadExport] = {}
        self.listed: tuple[Quarantined, ...] = ()

    def add(self, version: ExportVersion, node: Node, complaint: str) -> None:
        reason = (
            f"export {version.number} is quarantined: {complaint}. a later full can still be loaded into it; export "
            f"again, or if it is meant to be so: hotdelta release URL {node.position}"
        )
        if version not in self._bad:
            event(
                logger,
                logging.ERROR,
                "export quarantined",
                version=version.number,
                position=node,
                reason=reason,
            )
        self._bad[version] = _BadExport(version, node, reason)
        self._list()

    def hold(self, version: ExportVersion, node: Node, complaint: str) -> str:
        """It does not serve while it leads to this state; a later one is tried. Returns the reason."""
        reason = (
            f"it leads to {node.position}, which does not pass: {complaint}. a later commit is tried again; if it is "
            f"meant to be so: hotdelta release URL {node.position}"
        )
        event(logger, logging.ERROR, "export held back", version=version.number, position=node, reason=reason)
        self._held[version] = _BadExport(version, node, reason)
        self._list()
        return reason

    def why_held(self, version: ExportVersion, node: Node | None) -> str:
        """Why it does not serve while it leads to this state, or to any; empty when that was not tried."""
        held = self._held.get(version)
        return held.reason if held is not None and node in (None, held.node) else ""

    def let_go(self, version: ExportVersion) -> None:
        if self._held.pop(version, None) is not None:
            self._list()

    def reason(self, version: ExportVersion) -> str:
        """Why the values of a version must not be served; empty when they may, or when an operator released them."""
        bad = self._bad.get(version)
        return bad.reason if bad is not None and bad.node not in self._orders.released else ""

    def release(self, position: Position) -> Node | None:
        """The state that is no longer in quarantine, if an export of this position was."""
        nodes: list[Node] = []
        for listed in (self._bad, self._held):
            released = [version for version, bad in listed.items() if bad.node.position == position]
            nodes += [listed.pop(version).node for version in released]
        self._list()
        return nodes[0] if nodes else None

    def forget_vanished(self, present: list[ExportVersion]) -> None:
        if (self._bad.keys() | self._held.keys()) - set(present):
            self._bad = {version: bad for version, bad in self._bad.items() if version in present}
            self._held = {version: bad for version, bad in self._held.items() if version in present}
            self._list()

    def _list(self) -> None:
        bad = (*self._bad.values(), *self._held.values())
        self.listed = tuple(Quarantined(each.node, each.reason, BAD_VALUES) for each in bad)
