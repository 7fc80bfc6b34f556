"""What a variable is to whoever saves it: its class, and all else that can be said about it without its value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hotdelta.chain.bundle.dtypes import tensor_bytes
from hotdelta.logs import counted, format_table


class VariableClass(StrEnum):
    """Parameters are persistable too; what is temporary is never saved."""

    PARAMETER = "parameter"
    PERSISTABLE = "persistable"
    TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class VariableInfo:
    """One variable of a model, or of a checkpoint.

    A parameter is trained. A persistable is what else a resume needs: optimizer slots, moving averages, seeds, the
    step, the learning rate. A temporary starts afresh: metrics. `layout` says how a partitioned table keeps its rows,
    when that is not in the order of their ids. A growing table has the rows that are in use, of `reserved_rows`.
    """

    key: str
    variable_class: VariableClass
    shape: tuple[int, ...]
    dtype: str
    is_table: bool = False
    layout: str = ""
    reserved_rows: int | None = None

    @property
    def nbytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape) if self.dtype != "string" else 0

    @property
    def is_parameter(self) -> bool:
        return self.variable_class is VariableClass.PARAMETER

    @property
    def is_persistable(self) -> bool:
        return self.variable_class is not VariableClass.TEMPORARY


def show_shape(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"


def format_variables(variables: Iterable[VariableInfo]) -> str:
    """A table for people: one line for each variable, then how many bytes each class has."""
    variables = list(variables)
    rows = [("variable", "class", "kind", "shape", "dtype", "bytes")]
    rows += [
        (
            info.key,
            str(info.variable_class),
            "table" if info.is_table else "",
            show_shape(info.shape) + ("" if info.reserved_rows is None else f" of {info.reserved_rows}"),
            info.dtype,
            f"{info.nbytes:,}",
        )
        for info in variables
    ]
    return "\n".join([format_table(rows, left=len(rows[0]) - 1), "", *_totals(variables)])


def _totals(variables: Sequence[VariableInfo]) -> list[str]:
    found = []
    for variable_class in VariableClass:
        members = [info for info in variables if info.variable_class is variable_class]
        if members:
            total = sum(info.nbytes for info in members)
            found.append(f"{variable_class}: {counted(len(members), 'variable')}, {counted(total, 'byte')}")
    return found
