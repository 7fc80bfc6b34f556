"""Asks a model the probe, and judges its answers: does it still know what it knew?"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hotdelta.chain import Manifest, Node, SignatureSpec
from hotdelta.errors import ApplyError, HotdeltaError, PredictionError, RequestError, SanityError
from hotdelta.logs import counted
from hotdelta.quality_probe import Probe, ProbeLimits

Answers = npt.NDArray[np.float64]

# Between two of them it is looked at the clock.
_CHUNK_ROWS = 256
# A probability of 0 for what happened is not infinitely wrong.
_LEAST = 1e-7


class Model(Protocol):
    def predict(self, signature: str, feeds: Mapping[str, Any]) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class ProbeFigures:
    """What the answers to the first `rows` are worth; None where no limit asks for it."""

    rows: int
    log_loss: float | None = None
    auc: float | None = None
    change: float | None = None

    def __str__(self) -> str:
        found = (("log loss", self.log_loss), ("AUC", self.auc), ("largest change", self.change))
        told = [f"{name} {value:.4g}" for name, value in found if value is not None]
        return f"{', '.join(told)} over {counted(self.rows, 'row')}"


class QualityProbe:
    """Remembers what the state before answered. One thread at a time; `complaint_of` is for any."""

    def __init__(self, probe: Probe, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._probe = probe
        self._limits = probe.limits
        self._clock = clock
        self._labels = np.array(probe.labels)
        self._before: tuple[weakref.ref[Model], Node, Answers] | None = None

    def require_fit(self, signatures: Mapping[str, SignatureSpec]) -> None:
        """Raises ApplyError for a model that could never pass, whatever it learns: it takes no update for that."""
        probe, spec = self._probe, signatures.get(self._probe.signature)
        outputs = [tensor.name for tensor in spec.outputs] if spec is not None else []
        inputs = {tensor.name for tensor in spec.inputs} if spec is not None else set()
        if spec is None:
            problem = f"there is no signature {probe.signature!r}"
        elif inputs != probe.columns.keys():
            problem = f"it has the inputs {_listed(probe.columns)}, the signature {_listed(inputs)}"
        elif probe.output is not None and probe.output not in outputs:
            problem = f"there is no output {probe.output!r}, but {_listed(outputs)}"
        elif probe.output is None and len(outputs) != 1:
            problem = f'there are the outputs {_listed(outputs)}: choose one with "output"'
        else:
            return
        raise ApplyError(
            f"the probe does not fit: {problem}", hint=f"correct {probe.path}, or export what it fits"
        )

    def require_answers(self, model: Model) -> None:
        """Raises ApplyError for a row that the model does not take: that says nothing of its values."""
        probe = self._probe
        for start in range(0, probe.rows, _CHUNK_ROWS):
            rows = range(start, min(start + _CHUNK_ROWS, probe.rows))
            refusal = self._refusal(model, rows)
            if refusal is None:
                continue
            # One by one; and each beside the first one, which may have another shape.
            suspects = [[row] for row in rows] + [[start, row] for row in rows]
            found = ((each[-1], self._refusal(model, each)) for each in suspects)
            row, error = next(((row, error) for row, error in found if error), (start, refusal))
            raise ApplyError(
                f"the probe does not fit: line {probe.line_numbers[row]} of {probe.path}: {error}",
                hint="correct it, or export what it fits",
            )

    def _refusal(self, model: Model, rows: Sequence[int]) -> RequestError | None:
        probe = self._probe
        feeds = {name: [column[row] for row in rows] for name, column in probe.columns.items()}
        try:
            model.predict(probe.signature, feeds)
        except RequestError as error:
            return error
        except PredictionError:
            # That is the fault of the model, which is judged later.
            return None
        return None

    def prepare(self, model: Model, node: Node) -> None:
        """Before an update: know what this state answers, if the changes are limited. Nobody waits for it."""
        if self._limits.max_change is None or self._known(model, node) is not None:
            return
        try:
            self._before = weakref.ref(model), node, self._ask(model)
        except HotdeltaError:
            # What cannot be asked has no answers that could change.
            self._before = None

    def require(self, model: Model, manifest: Manifest, before: Node | None) -> None:
        """After an update that led from `before`. Raises SanityError with the figures."""
        known = None if before is None else self._known(model, before)
        try:
            answers = self._ask(model)
            complaint = self._judge(answers, known)
        except HotdeltaError as error:
            complaint, answers = f"it is refused: {error}", None
        if complaint:
            raise SanityError(
                f"{manifest.kind} {manifest.position} is quarantined: the probe: {complaint}",
                hint=f"a later full steps over it; if it is meant to be so: hotdelta release URL {manifest.position}",
            )
        if answers is not None and self._limits.max_change is not None:
            self._before = weakref.ref(model), manifest.node, answers

    def complaint_of(self, model: Model) -> str:
        """What is wrong with a model as it is, with no state before it."""
        try:
            complaint = self._judge(self._ask(model), None)
        except (RequestError, PredictionError) as error:
            complaint = f"it is refused: {error}"
        return f"the probe: {complaint}" if complaint else ""

    def _known(self, model: Model, node: Node) -> Answers | None:
        if self._before is None or self._before[0]() is not model or self._before[1] != node:
            return None
        return self._before[2]

    def _ask(self, model: Model) -> Answers:
        """As many rows as there is time for, the first ones in any case. Raises RequestError, PredictionError."""
        probe, found = self._probe, list[Answers]()
        deadline = self._clock() + self._limits.max_ms / 1000
        for start in range(0, probe.rows, _CHUNK_ROWS):
            if start and self._clock() >= deadline:
                break
            stop = min(start + _CHUNK_ROWS, probe.rows)
            feeds = {name: column[start:stop] for name, column in probe.columns.items()}
            found.append(_column(model.predict(probe.signature, feeds), probe.output, stop - start))
        return np.concatenate(found)

    def _judge(self, answers: Answers, before: Answers | None) -> str:
        """The first limit that is broken, and all figures; nothing when all is well."""
        if not np.isfinite(answers).all():
            return f"NaN or infinite in {counted(int((~np.isfinite(answers)).sum()), 'answer')}"
        labels = self._labels[: len(answers)]
        if self._limits.max_log_loss is not None and not ((answers >= 0) & (answers <= 1)).all():
            return f"an answer of {answers[np.argmax(np.abs(answers - 0.5))]:.4g} is no probability"
        figures = ProbeFigures(
            len(answers),
            log_loss(answers, labels) if self._limits.max_log_loss is not None else None,
            area_under_curve(answers, labels) if self._limits.min_auc is not None else None,
            _largest_change(answers, before) if self._limits.max_change is not None else None,
        )
        broken = judge(figures, self._limits)
        return f"{broken} ({figures})" if broken else ""


def judge(figures: ProbeFigures, limits: ProbeLimits) -> str:
    """Which limit is broken, or nothing. Pure."""
    for what, value, most in (
        ("log loss", figures.log_loss, limits.max_log_loss),
        ("largest change of an answer", figures.change, limits.max_change),
    ):
        if value is not None and most is not None and value > most:
            return f"the {what}, {value:.4g}, is more than {most:g}"
    if figures.auc is not None and limits.min_auc is not None and figures.auc < limits.min_auc:
        return f"the AUC, {figures.auc:.4g}, is less than {limits.min_auc:g}"
    return ""


def log_loss(answers: Answers, labels: Answers) -> float:
    likely = np.clip(answers, _LEAST, 1 - _LEAST)
    return float(-(labels * np.log(likely) + (1 - labels) * np.log1p(-likely)).mean())


def area_under_curve(answers: Answers, labels: Answers) -> float | None:
    """How often a row with the label 1 has the larger answer than one with 0; the same answer counts half.

    None when there are not both: as many rows as there was time for may be of one kind.
    """
    is_positive = labels >= 0.5
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    if not positives or not negatives:
        return None
    _, places, counts = np.unique(answers, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    above = ranks[is_positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def _largest_change(answers: Answers, before: Answers | None) -> float | None:
    if before is None:
        return None
    rows = min(len(answers), len(before))
    return float(np.abs(answers[:rows] - before[:rows]).max())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


def _column(outputs: Mapping[str, Any], name: str | None, rows: int) -> Answers:
    """One number for each row. Raises RequestError."""
    if name is None and len(outputs) != 1:
        raise RequestError(
            f"the signature has the outputs {', '.join(sorted(outputs))}", hint='choose one with "output"'
        )
    if name is not None and name not in outputs:
        raise RequestError(f"there is no output {name!r}", hint=f"outputs: {', '.join(sorted(outputs))}")
    array = np.asarray(next(iter(outputs.values())) if name is None else outputs[name])
    if array.size != rows or array.dtype.kind not in "biuf":
        raise RequestError(
            f"the output has shape {list(array.shape)} and is {array.dtype}, not a number for each row"
        )
    return array.reshape(-1).astype(np.float64)
