"""Loads variables from a save, or from a trainer's chain, into a model: checks everything, then changes it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotdelta.chain.format.position import Position
from hotdelta.chain.history.state import ChainState
from hotdelta.io.fit_check import Fit, compare, refuse_misfit
from hotdelta.io.late_optimizer import apply_when_compiled, build_unknown, find_waiting, forget_waiting
from hotdelta.io.model_state import HeldVariable, ModelState, state_of
from hotdelta.io.own_calls import called_our_way
from hotdelta.io.places import opened_to_load
from hotdelta.io.saved_state import SavedState
from hotdelta.io.selection import Predicate, select
from hotdelta.logs import event
from hotdelta.train.model.id_rules import find_other_rules, from_document

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load did: the keys that it set, those that wait for the model to be compiled, and what did not fit.

    `problems`: what kept it from a newer position. The lines of the other fields name a variable, or a layer
    that has another vocabulary, and say why.
    """

    position: Position
    step: int
    loaded: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatching: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@called_our_way
def load_vars(
    model: Any,
    dirname: str | Path,
    variables: Iterable[Any] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
    *,
    position: Position | str | None = None,
    strict: bool = True,
) -> Loaded:
    """Load the given variables (keys or variables; None: every persistable one) for which `predicate` holds.

    `dirname` is what save_* wrote, or the directory or address of a trainer: its newest full with the deltas after it,
    or the given position. Raises ModelMismatchError with a line for each variable that is missing, unexpected or
    different, and for each layer that has another vocabulary than it was saved with; then nothing was changed.
    `strict=False` loads what fits and reports the rest.
    """
    # Before anything is read: a model that cannot be loaded into is said at once.
    variables = None if variables is None else list(variables)
    select(state_of(model), variables, predicate)
    with opened_to_load(dirname, position=position, filename=filename) as found:
        return _load(model, variables, predicate, _opened(found), strict=strict)


def _load(
    model: Any,
    variables: Iterable[Any] | None,
    predicate: Predicate | None,
    saved: SavedState,
    *,
    strict: bool,
) -> Loaded:
    state = state_of(model)
    chosen = select(state, variables, predicate)
    unknown = () if variables is not None else _unknown(state, saved, predicate)
    if build_unknown(model, unknown):
        state = state_of(model)
        chosen = select(state, variables, predicate)
        unknown = _unknown(state, saved, predicate)
    waiting = find_waiting(model, unknown)
    unexpected = [key for key in unknown if key not in waiting]
    fit = compare(
        [held.info for held in chosen],
        saved.variables,
        unexpected,
        _find_other_rules(state, chosen, saved),
    )
    if strict:
        refuse_misfit(fit, state.description)
    _write(chosen, saved, fit.fitting)
    state.after_load()
    if variables is None and predicate is None:
        forget_waiting(model)
    if waiting:
        apply_when_compiled(model, saved, waiting, is_strict=strict)
    return _report(saved, fit, waiting)


@called_our_way
def load_params(
    model: Any,
    dirname: str | Path,
    filename: str | None = None,
    *,
    position: Position | str | None = None,
    strict: bool = True,
) -> Loaded:
    """Load what is trained, and nothing else: the optimizer and all other state stay as they are."""
    return load_vars(
        model,
        dirname,
        predicate=lambda info: info.is_parameter,
        filename=filename,
        position=position,
        strict=strict,
    )


@called_our_way
def load_persistables(
    model: Any, dirname: str | Path, position: Position | str | None = None, *, filename: str | None = None
) -> Loaded:
    """Load everything, so that training goes on as if it had never stopped.

    A Keras model may be compiled before or after it: what belongs to the optimizer waits for `compile`.
    """
    return load_vars(model, dirname, filename=filename, position=position)


def _opened(state: ChainState) -> SavedState:
    """Verified completely. Without a position, the newest that is not damaged."""
    for problem in state.problems:
        event(logger, logging.WARNING, "loading before a damaged link", reason=problem)
    return SavedState(state)


def _unknown(state: ModelState, saved: SavedState, predicate: Predicate | None) -> tuple[str, ...]:
    """What the checkpoint has and the model does not, among what was asked for."""
    known = state.by_key()
    return tuple(
        key
        for key, info in saved.variables.items()
        if key not in known and (predicate is None or predicate(info))
    )


def _find_other_rules(state: ModelState, chosen: Sequence[HeldVariable], saved: SavedState) -> list[str]:
    """The id rules that differ; none when nothing that was asked for has enough rows for one per word.

    Not only tables have a row for each word: weights of words do, too.
    """
    rules = from_document(saved.id_rules)
    fewest = min((rule.words for rule in rules.values()), default=0)
    if not rules or not any(saved.has_rows(held.key) or _rows(held) >= fewest for held in chosen):
        return []
    return find_other_rules(state.read_id_rules(), rules)


def _rows(held: HeldVariable) -> int:
    return held.info.shape[0] if held.info.shape else 0


def _write(chosen: Iterable[HeldVariable], saved: SavedState, fitting: Collection[str]) -> None:
    prepared = [(held, held.prepare_write()) for held in chosen if held.key in fitting]
    for held, write in prepared:
        write(saved.read(held.key, held.array_dtype))


def _report(saved: SavedState, fit: Fit, waiting: tuple[str, ...]) -> Loaded:
    newest = saved.newest
    event(
        logger,
        logging.INFO,
        "loaded",
        position=newest.position,
        step=newest.step,
        variables=len(fit.fitting),
        left_out=len(fit.problems),
    )
    return Loaded(
        newest.position,
        newest.step,
        fit.fitting,
        waiting,
        fit.missing,
        fit.unexpected,
        (*fit.mismatching, *fit.other_rules),
        tuple(str(problem) for problem in saved.state.problems),
    )
