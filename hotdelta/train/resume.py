"""Finding the newest position from which training can go on, and checking that the model fits it.

Nothing is changed here, neither on disk nor in the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from hotdelta.chain import names
from hotdelta.chain.bundle import BundleReader
from hotdelta.chain.delta_tensors import has_value, ids_tensor
from hotdelta.chain.manifest import Kind, Manifest
from hotdelta.chain.plan import ApplyDelta, RestoreFull, plan
from hotdelta.chain.position import Node
from hotdelta.chain.scan import Listing
from hotdelta.chain.signing import trusted_listing
from hotdelta.chain.slice_key import is_slice_key
from hotdelta.chain.verification import directory_of
from hotdelta.errors import ChainError, ModelMismatchError
from hotdelta.train.first_damage import first_damage
from hotdelta.train.id_rules import REMEDY, find_other_rules
from hotdelta.train.row_values import Array
from hotdelta.train.stored_rows import RowLink
from hotdelta.train.stored_values import read_rows
from hotdelta.train.trainer_state import TrainerState
from hotdelta.train.variables import ModelVariables, OtherVariable, RowVariable, Table

_OWN_TENSORS = {names.IDENTITY_TENSOR, names.STEP_TENSOR, names.TRAINER_STATE_TENSOR}


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A full and the deltas after it, all verified; and what kept it from being newer, if anything did."""

    full: Manifest
    deltas: tuple[Manifest, ...]
    problems: tuple[ChainError, ...]

    @property
    def newest(self) -> Manifest:
        return self.deltas[-1] if self.deltas else self.full

    @property
    def node(self) -> Node:
        return self.newest.node

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        return (self.full, *self.deltas)


def find_resume_point(run_dir: Path, listing: Listing, *, otherwise: str = "") -> ResumePoint | None:
    """The newest position whose files are all as their manifests say. None when nothing was ever committed.

    Raises ChainError when something was and none of it can be used; its hint ends with `otherwise`, what else the
    caller lets one do. With a signing key only what it signed is.
    """
    _require_listable(run_dir, listing)
    listing = trusted_listing(run_dir, listing)
    problems: list[ChainError] = []
    broken: set[tuple[Kind, str]] = set()
    while True:
        usable = [
            manifest for manifest in listing.manifests if (manifest.kind, manifest.prefix) not in broken
        ]
        found = plan(None, usable, refused=listing.refused)
        if found.problem is not None:
            problems.append(found.problem)
        fulls = [step.manifest for step in found.steps if isinstance(step, RestoreFull)]
        if not fulls:
            _refuse_to_start_over(run_dir, listing, problems, otherwise)
            return None
        deltas = tuple(step.manifest for step in found.steps if isinstance(step, ApplyDelta))
        error = first_damage(run_dir, (fulls[0], *deltas))
        if error is None:
            newest = deltas[-1] if deltas else fulls[0]
            return ResumePoint(fulls[0], deltas, (*problems, *_refused_after(newest, listing)))
        manifest, damage = error
        problems.append(damage)
        broken.add((manifest.kind, manifest.prefix))


def _refused_after(newest: Manifest, listing: Listing) -> Iterator[ChainError]:
    """What would be newer if it could be used: it is left out, but not without a word."""
    for item in listing.refused:
        if item.position is not None and item.position > newest.position:
            yield ChainError(f"{item.path.name} of {item.position}: {item.reason}")


def find_full(run_dir: Path, listing: Listing, prefix: str) -> Manifest | None:
    """The full of this name, which may be used; its files are not checked. None when there is no manifest of it.

    Raises ChainError when its manifest cannot be used; with a signing key, when that did not sign it.
    """
    trusted = trusted_listing(run_dir, listing)
    for refused in trusted.refused:
        if refused.path.name == names.manifest_name(prefix):
            raise ChainError(
                f"{run_dir / prefix} cannot be used: {refused.reason}",
                hint="take another checkpoint, or bring the manifest back that its trainer wrote",
            )
    return next((m for m in trusted.manifests if m.kind is Kind.FULL and m.prefix == prefix), None)


def check_full(run_dir: Path, listing: Listing, prefix: str) -> ResumePoint | None:
    """This very full, whatever was committed after it, verified. None when there is no manifest of it.

    Raises ChainError as `find_full` does, and when a file is not what the manifest says.
    """
    full = find_full(run_dir, listing, prefix)
    damage = first_damage(run_dir, [full]) if full else None
    if damage is not None:
        raise damage[1]
    return ResumePoint(full, (), ()) if full else None


def _require_listable(run_dir: Path, listing: Listing) -> None:
    """What nobody can list may hold newer commits; going on without them would throw them away."""
    directories = [directory_of(run_dir, kind) for kind in Kind]
    for item in listing.refused:
        if item.path in directories:
            raise ChainError(
                f"{item.path}: {item.reason}, and newer commits may be in it",
                hint="make it readable, or use another directory",
            )


def _refuse_to_start_over(
    run_dir: Path, listing: Listing, problems: Sequence[ChainError], otherwise: str
) -> None:
    """Servers would follow an untrained model: that needs a human."""
    if listing.manifests or listing.refused:
        reasons = [*map(str, problems), *(f"{item.path.name}: {item.reason}" for item in listing.refused)]
        raise ChainError(
            f"no full checkpoint in {run_dir} can be used: {'; '.join(dict.fromkeys(reasons))}",
            hint=f"bring the files back, or use another directory{otherwise}",
        )


class ResumeReader:
    """The tensors of a resume point. A context manager.

    It keeps no file of a delta open longer than it is read: there may be more of them than a process may open.
    """

    def __init__(self, run_dir: Path, point: ResumePoint) -> None:
        self._run_dir = run_dir
        self._manifests = point.manifests
        self._stack = ExitStack()
        self._readers = [
            self._stack.enter_context(BundleReader(directory_of(run_dir, manifest.kind), manifest.prefix))
            for manifest in point.manifests
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def problems(self, variables: ModelVariables) -> list[str]:
        """One line for each variable that only one of the two has, or that has another shape or dtype on disk."""
        missing = sorted(self.newest_keys() - {item.key for item in variables.everything()})
        return [
            *self.misfits(variables),
            *(f"{key}: the checkpoint has it, the model does not" for key in missing),
        ]

    def misfits(self, variables: ModelVariables) -> list[str]:
        """One line for each variable of the model that the checkpoint lacks, or has with another shape or dtype."""
        saved = self.newest_keys()
        return [line for item in variables.everything() if (line := self._problem(item, saved))]

    def newest_keys(self) -> set[str]:
        """The variables that the newest link knows. A full before it may hold those of an optimizer that went."""
        newest = self._readers[-1]
        if len(self._readers) == 1:
            return {name for name in newest.entries if not is_slice_key(name)} - _OWN_TENSORS
        suffixes = (names.ROWS_SUFFIX, names.VALUE_SUFFIX)
        return {
            name.removesuffix(suffix)
            for name in newest.entries
            for suffix in suffixes
            if name.endswith(suffix)
        }

    def _problem(self, item: RowVariable | OtherVariable, saved: Collection[str]) -> str | None:
        if item.key not in saved:
            return f"{item.key}: the model has it with shape {_show(item.shape)}, the checkpoint does not have it"
        entry = self._readers[0].entries.get(item.key)
        if entry is None:
            if self._is_introduced_later(item):
                return None
            return f"{item.key}: no link of the checkpoint has all of it"
        if tuple(entry.shape) != item.shape:
            return (
                f"{item.key}: shape {_show(item.shape)} in the model, {_show(entry.shape)} in the checkpoint"
            )
        if entry.dtype != item.dtype:
            return f"{item.key}: dtype {item.dtype} in the model, {entry.dtype} in the checkpoint"
        return None

    def _is_introduced_later(self, item: RowVariable | OtherVariable) -> bool:
        """A recompiled optimizer brings new slots in the middle of a chain, whole, in one delta."""
        for reader in self._readers[1:]:
            rows = reader.entries.get(item.key + names.ROWS_SUFFIX)
            value = reader.entries.get(item.key + names.VALUE_SUFFIX)
            if rows is not None and tuple(rows.shape) == item.shape:
                return True
            if value is not None and tuple(value.shape) == (1, *item.shape):
                return True
        return False

    def trainer_state(self) -> TrainerState:
        text = self._readers[-1].read(names.TRAINER_STATE_TENSOR).tobytes()
        return TrainerState.from_json(text)

    def table_values(self, table: Table) -> Iterator[tuple[RowVariable, Array]]:
        """Each row variable of the table with its value at the resume point, one at a time (they are large)."""
        for item in table.row_variables:
            yield item, self.row_values(item, owner=table.key)

    def row_values(self, item: RowVariable | OtherVariable, *, owner: str = "") -> Array:
        """The value of a variable that has rows at the resume point. `owner`: as of row_links."""
        links = self.row_links(item.key, owner=owner)
        return read_rows(links, item.shape, item.variable.dtype.as_numpy_dtype)

    def row_links(self, key: str, *, owner: str = "") -> list[RowLink]:
        """Every link that has rows of a variable, in the order in which they count. `owner`: the table that it is of.

        Whole values, too: what is a table now may have been none when the chain began.
        """
        full, *deltas = zip(self._manifests, self._readers, strict=True)
        found = []
        if key in full[1].entries:
            found.append(RowLink(self._run_dir, *full, key, None))
        for manifest, reader in deltas:
            rows, value = key + names.ROWS_SUFFIX, key + names.VALUE_SUFFIX
            if rows in reader.entries:
                with reader:
                    ids = reader.read(ids_tensor(reader.entries, key, owner=owner))
                found.append(RowLink(self._run_dir, manifest, reader, rows, ids))
            elif has_value(reader.entries, key):
                found.append(RowLink(self._run_dir, manifest, reader, value, None, is_value=True))
        return found

    def other_value(self, item: OtherVariable) -> Array:
        numpy_dtype = item.variable.dtype.as_numpy_dtype
        for reader in reversed(self._readers[1:]):
            if item.key + names.ROWS_SUFFIX in reader.entries:
                return self.row_values(item)
            if has_value(reader.entries, item.key):
                with reader:
                    return _typed(reader.map_bytes(item.key + names.VALUE_SUFFIX), numpy_dtype, item.shape)
        return _typed(self._readers[0].map_bytes(item.key), numpy_dtype, item.shape)


def check_fits(reader: ResumeReader, variables: ModelVariables) -> None:
    """Raises ModelMismatchError, which has a line for everything that does not fit."""
    other_rules = _find_other_rules(reader, variables)
    problems = [*reader.problems(variables), *other_rules]
    if problems:
        raise ModelMismatchError(
            "the model does not fit the checkpoint: " + "; ".join(problems),
            problems=tuple(problems),
            hint=f"{REMEDY if other_rules else 'build the model and compile it as it was saved'}, or use another "
            "directory; nothing was changed",
        )


def _find_other_rules(reader: ResumeReader, variables: ModelVariables) -> list[str]:
    return find_other_rules(variables.id_rules, reader.trainer_state().id_rules) if variables.id_rules else []


def _typed(raw: Array, dtype: object, shape: tuple[int, ...]) -> Array:
    return np.array(raw).view(dtype).reshape(shape)  # type: ignore[call-overload, no-any-return]


def _show(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
