"""Whether what is on disk fits a model: names, shapes, dtypes, id rules, all of it, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotdelta.errors import ModelMismatchError
from hotdelta.io.variable_class import VariableInfo, show_shape
from hotdelta.train.model.id_rules import REMEDY


@dataclass(frozen=True, slots=True)
class Fit:
    """What can be loaded, and a line for each variable that only one of the two has or that differs.

    `other_rules`: a line for each rule by which ids mean other rows than when they were saved.
    """

    fitting: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatching: tuple[str, ...]
    other_rules: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.missing, *self.unexpected, *self.mismatching, *self.other_rules)


def compare(
    wanted: Sequence[VariableInfo],
    saved: Mapping[str, VariableInfo],
    unexpected: Sequence[str],
    other_rules: Sequence[str] = (),
) -> Fit:
    """`unexpected`: what the checkpoint has, the model does not, and was not left out on purpose."""
    differences = {info.key: _difference(info, saved[info.key]) for info in wanted if info.key in saved}
    return Fit(
        fitting=tuple(key for key, difference in differences.items() if difference is None),
        missing=tuple(
            f"{info.key}: the model has it with shape {show_shape(info.shape)}, the checkpoint does not have it"
            for info in wanted
            if info.key not in saved
        ),
        unexpected=tuple(f"{key}: the checkpoint has it, the model does not" for key in unexpected),
        mismatching=tuple(line for line in differences.values() if line is not None),
        other_rules=tuple(other_rules),
    )


def refuse_misfit(fit: Fit, description: str) -> None:
    if fit.problems:
        raise ModelMismatchError(
            f"{description} does not fit the checkpoint: " + "; ".join(fit.problems),
            problems=fit.problems,
            hint=f"{REMEDY if fit.other_rules else 'build and compile it as it was saved'}; nothing was changed. "
            "load_vars(..., strict=False) loads what fits",
        )


def _difference(info: VariableInfo, saved: VariableInfo) -> str | None:
    if info.shape != saved.shape:
        return f"{info.key}: shape {show_shape(info.shape)} in the model, {show_shape(saved.shape)} in the checkpoint"
    if info.dtype != saved.dtype:
        return f"{info.key}: dtype {info.dtype} in the model, {saved.dtype} in the checkpoint"
    if info.layout != saved.layout:
        return (
            f"{info.key}: rows {info.layout or 'in the order of their ids'} in the model, "
            f"{saved.layout or 'in the order of their ids'} in the checkpoint"
        )
    return None
