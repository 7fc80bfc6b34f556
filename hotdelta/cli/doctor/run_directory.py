"""A checkpoint directory: who may use it, who does, what lies in it, and whether resume and export would work.

Sizes are compared, digests are not: that is `hotdelta verify`.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hotdelta.chain import Manifest, directory_of
from hotdelta.chain.format import names
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.chain.history.state import ChainState, peek_state, read_schema
from hotdelta.chain.history.state_reader import StateReader
from hotdelta.cli.doctor.check import Check, failure, ok, warning
from hotdelta.cli.history.history import Standing, read_history
from hotdelta.cli.history.opened_chain import OpenedChain, open_chain
from hotdelta.cli.output import format_age, format_bytes
from hotdelta.errors import ConfigurationError, HotdeltaError
from hotdelta.logs import counted

_LEFTOVER_SECONDS = 3600.0
_MAX_SHOWN = 3
_MEMORY_SHARE = 0.8


def checks(directory: Path, *, is_writing: bool, root: Path = Path("/")) -> Iterator[Check]:
    yield check_permissions(directory)
    if is_writing:
        yield check_writing(directory)
    yield check_trainer(directory, root)
    try:
        chain = open_chain(str(directory))
    except ConfigurationError as error:
        yield warning("chain", error.message, error.hint)
        return
    yield from check_chain(chain)
    yield from check_newest(chain, root)


def check_permissions(directory: Path) -> Check:
    deltas = directory / names.DELTA_DIRECTORY
    found = [path for path in (directory, deltas) if path.exists()]
    closed = [path for path in found if not os.access(path, os.R_OK | os.X_OK)]
    if closed or not found:
        problem = f"{closed[0]} cannot be read" if closed else f"{directory} does not exist"
        return failure("permissions", f"{problem} by user {os.getuid()}", "give the user the right to it")
    secret = [path for path in _manifests_and_indexes(found) if not os.access(path, os.R_OK)]
    if secret:
        return failure(
            "permissions",
            f"{counted(len(secret), 'file')} cannot be read by user {os.getuid()}: {secret[0]}",
            "let the group of servers read what the trainer writes",
        )
    is_writable = all(os.access(path, os.W_OK) for path in found)
    who = (
        "reads and writes (as a trainer must)"
        if is_writable
        else "reads (as servers do; a trainer must write)"
    )
    return ok("permissions", f"user {os.getuid()} {who}")


def _manifests_and_indexes(directories: Sequence[Path]) -> Iterator[Path]:
    for directory in directories:
        with suppress(OSError):
            yield from (path for path in directory.iterdir() if path.is_file())


def check_writing(directory: Path) -> Check:
    """What a commit does, in a directory of its own whose name readers do not look at."""
    parent = directory / names.DELTA_DIRECTORY
    try:
        with tempfile.TemporaryDirectory(
            prefix=f"{names.TEMPORARY_PREFIX}doctor-", dir=parent if parent.is_dir() else directory
        ) as place:
            _try_to_commit(Path(place))
    except OSError as error:
        return failure(
            "writing",
            f"{error.strerror} ({type(error).__name__})",
            "a trainer needs a file system with fsync, flock and hard links, and the right to write",
        )
    return ok("writing", "fsync, hard links that fail where a name exists, rename and flock work")


def _try_to_commit(place: Path) -> None:
    """Raises OSError."""
    first, second = place / "a", place / "b"
    descriptor = os.open(first, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    try:
        os.write(descriptor, b"x")
        os.fsync(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        second.hardlink_to(first)
        with suppress(FileExistsError):
            second.hardlink_to(first)
            raise OSError("a hard link replaced a file that was there")
        first.rename(place / "c")
    finally:
        os.close(descriptor)
    parent = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def check_trainer(directory: Path, root: Path) -> Check:
    """Whether one is running, by the kernel's list of locks: trying the lock could keep a trainer from starting."""
    path = directory / names.DELTA_DIRECTORY / names.LOCK_FILE
    try:
        inode = path.stat().st_ino
        held = any(_is_lock_of(line, inode) for line in (root / "proc/locks").read_text().splitlines())
    except FileNotFoundError:
        return ok("trainer", "none was ever started here, or the lock file was not copied")
    except OSError as error:
        return ok("trainer", f"not known: {error.strerror}")
    if not held:
        return ok("trainer", "none runs on this machine")
    try:
        said = path.read_text(errors="replace").strip()
    except OSError:
        said = ""
    return ok("trainer", f"one is running: {said}" if said else "one is running")


def _is_lock_of(line: str, inode: int) -> bool:
    """A line is `1: FLOCK  ADVISORY  WRITE 1234 fe:01:5678 0 EOF`, the last number of the sixth word the inode."""
    fields = line.split()
    return len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode)


def check_chain(chain: OpenedChain) -> Iterator[Check]:
    listing = chain.listing
    if listing.refused:
        first = listing.refused[0]
        more = f", and {len(listing.refused) - 1} more" if len(listing.refused) > 1 else ""
        yield failure(
            "manifests",
            f"{first.path.name} cannot be used: {first.reason}{more}",
            "see: hotdelta log DIR",
        )
    if not os.environ.get(KEY_FILE_VARIABLE) and any(m.signature for m in listing.manifests):
        yield warning(
            "signatures",
            "commits are signed, and no key is configured here",
            f"set {KEY_FILE_VARIABLE} to check them",
        )
    history = read_history(listing)
    if history.way.problem is not None:
        yield failure("chain", history.way.problem.message, history.way.problem.hint)
    elif history.way.target is not None:
        newest = history.entries[0].manifest
        abandoned = sum(entry.standing is Standing.ABANDONED for entry in history.entries)
        branches = f", {abandoned} abandoned" if abandoned else ""
        age = format_age(time.time() - newest.created_at)
        yield ok(
            "chain",
            f"{len(history.entries)} positions{branches}; the newest, {newest.position}, is {age} old",
        )
        if newest.created_at > time.time() + 1:
            yield warning(
                "clock of the trainer",
                f"{newest.position} was made {newest.created_at - time.time():.0f} s from now",
                "the clocks of this machine and the trainer's differ: lags will be wrong",
            )
    yield from _check_files(chain)


def _check_files(chain: OpenedChain) -> Iterator[Check]:
    problems = list(_wrong_files(chain.directory, chain.listing.manifests))
    if problems:
        more = f", and {len(problems) - _MAX_SHOWN} more" if len(problems) > _MAX_SHOWN else ""
        yield failure(
            "files",
            "; ".join(problems[:_MAX_SHOWN]) + more,
            "bring them back, or wait for the next full; see: hotdelta verify DIR",
        )
    else:
        total = sum(manifest.total_bytes for manifest in chain.listing.manifests)
        yield ok("files", f"all there, {format_bytes(total)}; their digests: hotdelta verify DIR")
    old = [path for path in _temporaries(chain.directory) if _age(path) > _LEFTOVER_SECONDS]
    if old:
        yield warning(
            "leftovers",
            f"{counted(len(old), 'temporary file')} of a save that was killed, for example {old[0].name}",
            "the next trainer that starts here removes them",
        )


def _wrong_files(directory: Path, manifests: Sequence[Manifest]) -> Iterator[str]:
    for manifest in manifests:
        for file in manifest.files:
            path = directory_of(directory, manifest.kind) / file.name
            try:
                size = path.stat().st_size
            except OSError as error:
                yield f"{file.name} of {manifest.position}: {error.strerror}"
            else:
                if size != file.bytes:
                    yield f"{file.name} of {manifest.position} has {size:,} bytes and not {file.bytes:,}"


def _temporaries(directory: Path) -> Iterator[Path]:
    for place in (directory, directory / names.DELTA_DIRECTORY):
        with suppress(OSError):
            yield from place.glob(f"{names.TEMPORARY_PREFIX}*")


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def check_newest(chain: OpenedChain, root: Path) -> Iterator[Check]:
    """Whether a trainer could resume, the exporter export, and a server on this machine hold it."""
    try:
        state = peek_state(chain.directory, listing=chain.listing)
    except HotdeltaError as error:
        yield failure("resume", error.message, error.hint)
        return
    if state is None:
        yield failure("resume", "no full leads anywhere", "wait for the next full")
        return
    yield check_resume(state)
    yield check_export(chain, state)
    yield check_memory(state, root)


def check_resume(state: ChainState) -> Check:
    """Whether the trainer's own state is there, and all files of the way to it."""
    try:
        has_state = StateReader(state).newest_tensor(names.TRAINER_STATE_TENSOR) is not None
        missing = next(_wrong_files(state.run_dir, state.manifests), None)
    except HotdeltaError as error:
        return failure("resume", error.message, error.hint or "see: hotdelta verify DIR")
    if missing:
        return failure(
            "resume", missing, "a trainer would step back before it, or start from an earlier full"
        )
    if not has_state:
        return failure(
            "resume", f"{state.node} has no state of a trainer", "it was not written by one: resume elsewhere"
        )
    return ok("resume", f"a trainer would go on from {state.node}, step {state.newest.step:,}")


def check_export(chain: OpenedChain, state: ChainState) -> Check:
    deltas, newest = chain.directory / names.DELTA_DIRECTORY, state.newest
    schema = deltas / names.schema_name(newest.schema)
    if schema.exists() and read_schema(chain.directory, newest) is None:
        return failure(
            "export",
            f"{schema.name} is not what the manifests mean",
            "copy it from where the trainer wrote it",
        )
    graph = deltas / names.serving_graph_name(newest.schema)
    missing = [path.name for path in (schema, graph / "saved_model.pb") if not path.is_file()]
    if missing:
        return warning(
            "export",
            f"the trainer left no {' and no '.join(missing)} ({graph.name})",
            "`exporter` cannot export this directory: export from the program that has the model",
        )
    if not os.access(graph / "saved_model.pb", os.R_OK):
        return failure("export", f"{graph} cannot be read", "give the user of the exporter the right to it")
    return ok("export", f"schema and serving graph of {state.node} are there")


def check_memory(state: ChainState, root: Path) -> Check:
    """A full has every row, so its serving files are about what a server holds."""
    wanted = state.full.serving_bytes
    available = _available_bytes(root)
    found = f"a server holds about {format_bytes(wanted)}"
    if available is None:
        return ok("memory", found)
    found += f", {format_bytes(available)} are free here"
    if wanted > available * _MEMORY_SHARE:
        return warning("memory", found, "serve it on a machine with more memory; a new export needs it twice")
    return ok("memory", found)


def _available_bytes(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
