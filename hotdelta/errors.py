"""Every error that hotdelta raises on purpose, as one tree.

HotdeltaError
├── ConfigurationError        a configuration that cannot do what it says (also a ValueError)
├── DirectoryBusyError        another trainer writes to this directory
├── JobRestartedError         this trainer's work is not what its job goes on from
├── SupersededError           another trainer went on with this chain
├── ModelMismatchError        the model and what is on disk do not fit
├── ChainError                what is on disk cannot be followed
│   ├── ManifestError         one manifest cannot be used (malformed, unknown version, too large)
│   ├── HoleError             a link of the chain is missing
│   ├── DamagedError          a file is not what its manifest says
│   └── SchemaError           a manifest belongs to a model of another schema
├── CommitError               a save could not be committed (disk full, permission, directory gone)
│   └── UnsavedError          training ended, and its last steps are not on disk
├── StoreError                a store beyond this machine did not do what it was asked
│   ├── ObjectMissingError    no object has this name
│   ├── NameTakenError        a name that should be new may be taken
│   ├── ObjectTooLargeError   an object is larger than anything that belongs there
│   ├── ObjectDamagedError    an object is not what its record says
│   ├── UnfitStoreError       a store does not keep a promise that chains rest on
│   └── UnpublishedError      what was committed on this machine is not in its store
├── ApplyError                an update could not be staged or applied to the live model
│   └── SanityError           the values of an update are not what training writes
├── NotReadyError             no model is served yet
├── PredictionError           the model failed at a request that was in order
├── OverloadedError           too many requests wait for the model
├── DeadlineError             an answer took longer than is allowed
└── RequestError              a caller's request cannot be answered as it stands
    ├── AdminOffError             nobody may give orders here
    ├── UnauthorizedError         a request or an order carries no token, or none that is known
    ├── BodyTooLargeError         a request is larger than is allowed
    ├── TooManyRowsError          a request has more rows than is allowed
    ├── UnknownModelError         a request names a model, version or label that is not served
    └── PositionNotReachedError   a request asks for a position that is not served yet

Each carries what it is about in typed fields, whether trying again later can help (`retryable`), and in `hint`
what to do next. Nothing here knows HTTP.
"""

from __future__ import annotations

from pathlib import Path

MAX_CHARACTERS = 2000


class HotdeltaError(Exception):
    """The root: a message that says what is wrong, and a hint that says what to do."""

    retryable = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        # It may quote what somebody else wrote, and it is logged, kept and told.
        if len(message) > MAX_CHARACTERS:
            message = f"{message[:MAX_CHARACTERS]}..."
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class ConfigurationError(HotdeltaError, ValueError):
    """A configuration that cannot do what it says."""


class DirectoryBusyError(HotdeltaError):
    """Another trainer holds the lock of this checkpoint directory."""

    def __init__(self, message: str, *, directory: Path, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.directory = directory


class JobRestartedError(HotdeltaError):
    """The job goes on from a position that this trainer's work does not follow: it has to go back there."""


class SupersededError(HotdeltaError):
    """A trainer that began later has the chain: whatever this one saves from now on would be followed by nobody."""


class ModelMismatchError(HotdeltaError):
    """The model and the checkpoint do not fit; `problems` has one line per variable."""

    def __init__(self, message: str, *, problems: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class ChainError(HotdeltaError):
    """What is on disk cannot be followed."""


class ManifestError(ChainError):
    """One manifest cannot be used."""

    def __init__(self, message: str, *, path: Path | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


class HoleError(ChainError):
    """A link of the chain is missing; it may still arrive, or a later full steps over it."""

    retryable = True

    def __init__(self, message: str, *, missing: str, wanted_by: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.missing = missing
        self.wanted_by = wanted_by


class DamagedError(ChainError):
    """A file is missing, or its size or digest is not what its manifest says."""

    def __init__(
        self, message: str, *, path: Path, position: str, retryable: bool = False, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.position = position
        self.retryable = retryable


class SchemaError(ChainError):
    """A manifest belongs to a model of another schema."""

    def __init__(self, message: str, *, expected: str, found: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.expected = expected
        self.found = found


class CommitError(HotdeltaError):
    """A save could not be committed; nothing of it is visible to readers."""

    retryable = True

    def __init__(self, message: str, *, path: Path | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


class UnsavedError(CommitError):
    """Training ended, and its last `steps` are not on disk: `position` is what a restart goes on from."""

    def __init__(self, reason: str, *, steps: int, rows: int, position: object, path: Path) -> None:
        """`rows`: how many are known to be touched; 0 when that is not known."""
        lost = f"{steps:,} step{'' if steps == 1 else 's'}" if steps else "changes"
        touched = f" ({rows:,} touched row{'' if rows == 1 else 's'})" if rows else ""
        since = "" if position is None else f" since position {position}"
        super().__init__(
            f"the last save is not on disk, {lost}{touched}{since} would be lost: {reason}",
            path=path,
            hint=f"see that {path} can be written; a restart goes on from "
            + ("nothing" if position is None else f"position {position}"),
        )
        self.steps, self.rows, self.position = steps, rows, position


class StoreError(HotdeltaError):
    """A store beyond this machine did not do what it was asked; `retryable` when it may do so later."""

    def __init__(self, message: str, *, retryable: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retryable = retryable


class ObjectMissingError(StoreError):
    """No object has this name, or none has it any more."""


class NameTakenError(StoreError):
    """A name that should be new may be taken: only reading it tells by whom."""


class ObjectTooLargeError(StoreError):
    """An object is larger than anything that belongs under its name."""


class ObjectDamagedError(StoreError):
    """An object is not what its record says; read while it was put, it may be so later."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, retryable=True, hint=hint)


class UnfitStoreError(StoreError):
    """A store does not keep a promise that chains rest on, for example that of many puts of a name one wins."""


class UnpublishedError(StoreError):
    """Training ended, and `commits` that are on disk here are not in the store; a restart publishes them."""

    def __init__(self, message: str, *, commits: int, path: Path, hint: str = "") -> None:
        super().__init__(message, retryable=True, hint=hint)
        self.commits = commits
        self.path = path


class ApplyError(HotdeltaError):
    """An update could not be staged or applied; the live model is unchanged."""


class SanityError(ApplyError):
    """The values of an update are not what training writes: NaN, garbage, too many rows; it is quarantined."""


class NotReadyError(HotdeltaError):
    """No model is served yet; it becomes ready by itself."""

    retryable = True


class PredictionError(HotdeltaError):
    """The model failed at a request that was in order."""


class OverloadedError(HotdeltaError):
    """Too many requests wait for the model."""

    retryable = True


class DeadlineError(HotdeltaError):
    """An answer took longer than is allowed."""

    retryable = True


class RequestError(HotdeltaError):
    """A caller's request cannot be answered as it stands."""


class AdminOffError(RequestError):
    """No tokens are configured, so nobody may give orders."""


class UnauthorizedError(RequestError):
    """A request or an order carries no token, or none that is known."""


class BodyTooLargeError(RequestError):
    """A request is larger than is allowed."""

    def __init__(self, message: str, *, max_bytes: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.max_bytes = max_bytes


class TooManyRowsError(RequestError):
    """A request has more rows than is allowed."""

    def __init__(self, message: str, *, max_rows: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.max_rows = max_rows


class UnknownModelError(RequestError):
    """A request names a model, a version of it or a label that is not served here."""


class PositionNotReachedError(RequestError):
    """A request asks for a position that is not served yet; `live` is the one that is."""

    retryable = True

    def __init__(self, message: str, *, wanted: str, live: str | None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.wanted = wanted
        self.live = live
