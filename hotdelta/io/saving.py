"""Saves variables of a model as one full checkpoint: a chain of one commit, which all of hotdelta reads."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hotdelta.chain.bundle.dtypes import DTYPE_NUMBERS
from hotdelta.chain.disk import Disk
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind
from hotdelta.chain.format.position import Node, Position, new_state_id
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import ConfigurationError
from hotdelta.io.model_state import HeldVariable, ModelState, state_of
from hotdelta.io.one_commit import Save, commit_save
from hotdelta.io.own_calls import called_our_way
from hotdelta.io.places import opened_to_save
from hotdelta.io.saved_position import named_prefix
from hotdelta.io.selection import Predicate, select
from hotdelta.io.served_part import find_served
from hotdelta.logs import event
from hotdelta.train.serving.files import save_schema, save_serving_graph

logger = logging.getLogger(__name__)

_FILENAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")


@called_our_way
def save_vars(
    model: Any,
    dirname: str | Path,
    variables: Iterable[Any] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> Position:
    """Save the given variables (keys or variables; None: every persistable one) for which `predicate` holds.

    `dirname`: a directory, or the address of a store. It may hold many saves: loading takes the newest, or the one of
    that `filename`. Returns its position.
    Raises ConfigurationError, CommitError, StoreError, and DirectoryBusyError while somebody else writes there.
    """
    state = state_of(model)
    return _save(state, select(state, variables, predicate), dirname, filename)


@called_our_way
def save_params(model: Any, dirname: str | Path, filename: str | None = None) -> Position:
    """Save what is trained, and nothing else: enough to go on with another optimizer."""
    return save_vars(model, dirname, predicate=lambda info: info.is_parameter, filename=filename)


@called_our_way
def save_persistables(model: Any, dirname: str | Path, filename: str | None = None) -> Position:
    """Save everything a resume needs: parameters, optimizer slots, other state, seeds, step and learning rate."""
    return save_vars(model, dirname, filename=filename)


def _save(
    state: ModelState, chosen: tuple[HeldVariable, ...], dirname: str | Path, filename: str | None
) -> Position:
    _refuse_odd_name(filename)
    _refuse_dtypes(chosen)
    step, served, disk = state.read_step(), find_served(state, chosen), Disk()
    with opened_to_save(dirname) as place:
        node = Node(Position(place.run, 1), new_state_id())
        highest = max((manifest.highest_step.full for manifest in place.listing.manifests), default=-1)
        prefix = _choose_prefix(step, node.position, filename, is_step_fresh=step > highest)
        beside = directory_of(place.directory, Kind.DELTA)
        if served.module is not None:
            save_serving_graph(beside, served.module, served.schema)
        else:
            save_schema(beside, served.schema)
        rules = {key: rule.saved for key, rule in state.read_id_rules().items()}
        commit_save(place.directory, Save(prefix, node, step, chosen, served, highest, rules), disk)
    event(logger, logging.INFO, "saved", path=f"{dirname}/{prefix}", variables=len(chosen), step=step)
    return node.position


def _refuse_odd_name(filename: str | None) -> None:
    if filename is not None and not _FILENAME.fullmatch(filename):
        raise ConfigurationError(
            f"filename {filename!r} cannot be part of a file name", hint="use letters, digits, _ and -"
        )


def _refuse_dtypes(chosen: Iterable[HeldVariable]) -> None:
    for held in chosen:
        if held.info.dtype not in DTYPE_NUMBERS:
            raise ConfigurationError(
                f"{held.key!r} is of {held.info.dtype}, which no checkpoint holds",
                hint="leave it out with a predicate, or keep it as another dtype",
            )
    found = [held.key for held in chosen if held.info.dtype == "string"]
    if found:
        raise ConfigurationError(
            f"strings cannot be saved: {', '.join(found)}",
            hint="leave them out with a predicate; a lookup layer keeps its words with the graph",
        )


def _choose_prefix(step: int, position: Position, filename: str | None, *, is_step_fresh: bool) -> str:
    """Plain while free, else with the position appended: no name is used twice."""
    if filename is None:
        return names.full_prefix(step, position, is_step_fresh=is_step_fresh)
    plain = named_prefix(step, filename)
    return plain if is_step_fresh else f"{plain}-{position}"
