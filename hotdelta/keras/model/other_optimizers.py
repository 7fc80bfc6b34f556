"""Optimizers that a model holds beside the one that it is compiled with: a train_step of its own uses them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from hotdelta.errors import ConfigurationError
from hotdelta.keras.model.contents_watch import ContentsWatch
from hotdelta.keras.model.structure import inner_models
from hotdelta.keras_internals import BOOKKEEPING, attributes_of, trained_by
from hotdelta.logs import event
from hotdelta.train.model.optimizer_slots import (
    OPTIMIZER,
    KeyedVariable,
    SlotVariable,
    innermost,
    optimizer_variables,
    raw,
)

logger = logging.getLogger(__name__)

_named: weakref.WeakKeyDictionary[keras.Model, set[str]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class OtherOptimizers:
    """Each under the attribute that holds it, of the model or of a model in it: itself, or in a list or dictionary.

    `built`: those that were when they were looked for. One that is not has nothing yet that could be saved.
    """

    models: Sequence[tuple[str, keras.Model]]
    by_label: Mapping[str, Any]
    built: frozenset[str]
    watch: ContentsWatch

    @property
    def is_current(self) -> bool:
        """The model holds the same, and no more of them are built: cheap enough for every save."""
        if not self.watch.is_same:
            if _search(self.models) != self.by_label:
                return False
            self.watch.note()
        return _built(self.by_label) == self.built

    def variables(
        self, key_of: Mapping[int, str], *, left_out: Collection[str] = ()
    ) -> tuple[list[SlotVariable], list[KeyedVariable]]:
        """As `optimizer_variables`, of all of them. What cannot be saved is logged, once for each model."""
        slots: list[SlotVariable] = []
        rest: list[KeyedVariable] = []
        for label, optimizer in self.by_label.items():
            if not optimizer.built or not _is_of(optimizer, key_of):
                self._name_unsaved(label)
            elif label not in left_out:
                more_slots, more_rest = optimizer_variables(optimizer, key_of, under=_place(label))
                slots += more_slots
                rest += more_rest
        return slots, rest

    def build_saved(self, saved: Collection[str], parameters: Mapping[str, Any]) -> bool:
        """Build those of which variables were saved, for the parameters that they trained. False: there are none."""
        waiting = [label for label in self.by_label if label not in self.built and self.is_in(label, saved)]
        for label in waiting:
            trained = _trained(label, saved)
            chosen = [variable for key, variable in parameters.items() if key in trained]
            with self.models[0][1].distribute_strategy.scope():
                self.by_label[label].build(chosen or list(parameters.values()))
        return bool(waiting)

    def is_in(self, label: str, saved: Collection[str]) -> bool:
        return any(key.startswith(f"{_place(label)}/") for key in saved)

    def missing_in(self, saved: Collection[str]) -> frozenset[str]:
        """Those that are built, and of which nothing was saved."""
        return frozenset(label for label in self.built if not self.is_in(label, saved))

    def _name_unsaved(self, label: str) -> None:
        named = _named.setdefault(self.models[0][1], set())
        if label not in named:
            named.add(label)
            hint = "its first step, or its build() with variables of the model, makes what can be saved"
            event(logger, logging.WARNING, "an optimizer is not saved", attribute=label, hint=hint)


def find_other_optimizers(model: keras.Model) -> OtherOptimizers:
    """Raises ConfigurationError when the variables of two would have the same keys."""
    models = [("", model), *inner_models(model)]
    found = _search(models)
    watch = ContentsWatch(lambda: _searched([each for _, each in models]))
    return OtherOptimizers(models, found, _built(found), watch)


def build_saved_optimizers(
    model: keras.Model, saved: Collection[str], keyed: Sequence[KeyedVariable]
) -> bool:
    """Before a load: make what was saved of optimizers that a first step would build. False: nothing was made."""
    key_of = {id(item.variable): item.key for item in keyed}
    parameters = {key_of[id(raw(variable))]: variable for variable in model.trainable_variables}
    return find_other_optimizers(model).build_saved(saved, parameters)


def _search(models: Sequence[tuple[str, keras.Model]]) -> dict[str, Any]:
    known = getattr(models[0][1], "optimizer", None)
    # Under mixed precision Keras puts another one around the one that it is given.
    seen = {id(known), id(innermost(known))}
    names = {"inner": "compile"} if known is not innermost(known) else {}
    found: dict[str, Any] = {}
    for path, model in models:
        for name, place, optimizer in _held(model):
            if id(optimizer) in seen:
                continue
            seen |= {id(optimizer), id(innermost(optimizer))}
            label = f"{path}/{place}" if path else place
            if label in names:
                raise ConfigurationError(
                    f"the optimizers of {names[label]!r} and {name!r} would be saved under one name, {label!r}",
                    hint="give the attribute another name",
                )
            names[label], found[label] = name, optimizer
    return found


def _searched(models: Sequence[keras.Model]) -> Iterator[Any]:
    """Where optimizers may be: the attributes of the models, and the lists and dictionaries that those hold."""
    for model in models:
        yield vars(model)
        held = attributes_of(model, without=BOOKKEEPING)
        yield from (value for _, value in held if isinstance(value, list | tuple | dict))


def _held(model: keras.Model) -> Iterator[tuple[str, str, Any]]:
    """The attribute, the place of the optimizer in what is saved, and the optimizer."""
    for name, value in attributes_of(model, without=BOOKKEEPING):
        label = name.lstrip("_")
        if isinstance(value, keras.optimizers.Optimizer):
            yield name, label, value
        elif isinstance(value, list | tuple | dict):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for place, item in items:
                if isinstance(item, keras.optimizers.Optimizer):
                    yield name, f"{label}/{place}", item


def _built(found: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(label for label, optimizer in found.items() if optimizer.built)


def _place(label: str) -> str:
    return f"{OPTIMIZER}/{label}"


def _trained(label: str, saved: Collection[str]) -> set[str]:
    """The keys of the variables of which slots of the optimizer were saved, wherever it is wrapped."""
    below = (key.removeprefix(f"{_place(label)}/") for key in saved if key.startswith(f"{_place(label)}/"))
    slots = (key.removeprefix("inner/") for key in below)
    return {slot.partition("/")[2] for slot in slots}


def _is_of(optimizer: Any, key_of: Mapping[int, str]) -> bool:
    return all(id(raw(variable)) in key_of for variable in trained_by(innermost(optimizer)))
