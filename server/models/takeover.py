"""Whether a model may be what clients get by a name that another one had until now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hotdelta.chain import SignatureSpec, TensorSpec
from hotdelta.errors import RequestError

if TYPE_CHECKING:
    from loader import LoaderStatus

# A trainer that commits all the time is always a moment ahead.
MAX_SECONDS_BEHIND = 5.0


def require_caught_up(name: str, status: LoaderStatus) -> None:
    """Raises RequestError: it serves nothing, is stuck, or has yet to apply what is older than a few seconds."""
    if not status.is_ready:
        raise RequestError(
            f"{name!r} serves nothing yet: {status.reason or 'it is loading'}", hint="wait until it is ready"
        )
    if status.state in ("degraded", "waiting"):
        raise RequestError(f"{name!r} is {status.state}: {status.reason}", hint="wait until it follows")
    if status.state == "pinned" and status.commits_behind:
        raise RequestError(f"{name!r} is held back: {status.reason}", hint="resume it first")
    commits, seconds = status.commits_behind, status.seconds_behind
    if commits and seconds > MAX_SECONDS_BEHIND:
        raise RequestError(
            f"{name!r} has not caught up: {commits} commits and {seconds:.0f} seconds behind",
            hint="wait until it has",
        )


def require_same_calls(
    name: str, new: Mapping[str, SignatureSpec], now: str, old: Mapping[str, SignatureSpec]
) -> None:
    """Whatever clients ask of the one they must be able to ask of the other. Raises RequestError."""
    hint = f"clients of {now!r} could not ask it: give it a label of its own"
    for signature, wanted in old.items():
        found = new.get(signature)
        if found is None:
            raise RequestError(f"{name!r} has no signature {signature!r}", hint=hint)
        for what, theirs, ours in (
            ("inputs", found.inputs, wanted.inputs),
            ("outputs", found.outputs, wanted.outputs),
        ):
            if set(theirs) != set(ours):
                raise RequestError(
                    f"{name!r} has other {what} in {signature!r}: {_told(theirs)} in place of {_told(ours)}",
                    hint=hint,
                )


def _told(tensors: tuple[TensorSpec, ...]) -> str:
    return ", ".join(f"{tensor.name} {tensor.dtype}{_shape(tensor.shape)}" for tensor in tensors) or "none"


def _shape(shape: tuple[int | None, ...] | None) -> str:
    if shape is None:
        return "[...]"
    return f"[{', '.join('any' if size is None else str(size) for size in shape)}]"
