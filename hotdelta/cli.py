"""The command `hotdelta`: look at a chain on disk, and give orders to a server. Never imports TensorFlow."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hotdelta import operator_orders
from hotdelta.chain import Kind, Listing, Manifest, Scanner, TableRecord, plan, verify
from hotdelta.chain.history.signing import trusted_listing
from hotdelta.check_progress import CheckProgress
from hotdelta.errors import ChainError, ConfigurationError, DamagedError, HotdeltaError
from hotdelta.given_directory import to_directory
from hotdelta.io.contents import describe_directory
from hotdelta.logs import counted, format_table

EXIT_DAMAGED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_EPILOG = """\
examples:
  # what a trainer has committed: newest last, one line for each full and delta
  hotdelta chain run

  # which variables are saved, and what each is for
  hotdelta describe run

  # is every file what its manifest says, and can a server get to the newest position?
  hotdelta verify run

  # take a server back by one update, and let it go on later (HOTDELTA_ADMIN_TOKEN holds its token)
  hotdelta rollback http://127.0.0.1:8000 --deltas 1
  hotdelta resume http://127.0.0.1:8000

A position is run.seq: the seq-th commit of the run-th start of a trainer. A full and the delta that closes it share
one. Deltas name their parent; a server that is at the parent follows by applying the delta.
Exit codes: 0 in order, 1 something is damaged or missing (it is named), 2 wrong usage, 130 stopped by Ctrl-C.
"""

_COLUMNS = ("kind", "position", "parent", "step", "rows", "bytes", "age")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except KeyboardInterrupt:
        print("hotdelta: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    if options.command in operator_orders.COMMANDS:
        return operator_orders.run(options)
    try:
        directory = to_directory(options.directory, "DIR")
        listing = _scan(directory)
    except HotdeltaError as error:
        print(f"hotdelta: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        return _COMMANDS[options.command](directory, listing)
    except BrokenPipeError:
        # `hotdelta chain run | head`: nobody reads on. Python would complain once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _scan(directory: Path) -> Listing:
    """Raises ConfigurationError when there is no chain to look at."""
    if not directory.is_dir():
        problem = "is not a directory" if directory.exists() else "does not exist"
        raise ConfigurationError(
            f"{directory} {problem}", hint="give the directory that the trainer writes to"
        )
    listing = trusted_listing(directory, Scanner(directory).scan())
    if not listing.manifests and not listing.refused:
        raise ConfigurationError(
            f"nothing is committed in {directory}",
            hint="give the checkpoint directory of a trainer that has saved",
        )
    return listing


def _describe(directory: Path, listing: Listing) -> int:
    try:
        print(describe_directory(directory, listing))
    except ChainError as error:
        print(f"damaged: {error}", file=sys.stderr)
        return EXIT_DAMAGED
    return _tell_refused(listing)


def _tell_refused(listing: Listing) -> int:
    for refused in listing.refused:
        print(f"cannot be used: {refused.path}: {refused.reason}")
    return EXIT_DAMAGED if listing.refused else 0


def _show_chain(_directory: Path, listing: Listing) -> int:
    now = time.time()
    print(format_table([_COLUMNS, *(_row(manifest, now) for manifest in listing.manifests)], left=1))
    fulls = sum(manifest.kind is Kind.FULL for manifest in listing.manifests)
    total = sum(manifest.total_bytes for manifest in listing.manifests)
    print(f"\nfulls: {fulls}, deltas: {len(listing.manifests) - fulls}, together {format_bytes(total)}")
    _tell_growing(listing.manifests)
    return _tell_refused(listing)


def _row(manifest: Manifest, now: float) -> tuple[str, ...]:
    parent = manifest.parent if manifest.kind is Kind.DELTA else None
    return (
        str(manifest.kind),
        str(manifest.position),
        str(parent) if parent else "-",
        str(manifest.step),
        f"{_count_rows(manifest):,}",
        format_bytes(manifest.total_bytes),
        format_age(now - manifest.created_at),
    )


def _count_rows(manifest: Manifest) -> int:
    """Those that changed; a full holds all of them."""
    if manifest.kind is Kind.DELTA:
        return manifest.rows_changed
    return sum(table.stored_shape[0] for table in manifest.tables.values())


def _tell_growing(manifests: Sequence[Manifest]) -> None:
    """How full the tables are that reserve more rows than they have, at the newest position."""
    for key, table in manifests[-1].tables.items() if manifests else ():
        if table.rows_in_use is not None:
            print(f"{key}: {table.rows_in_use:,} of {table.shape[0]:,} rows in use{_tell_keys(table)}")


def _tell_keys(table: TableRecord) -> str:
    if table.keys_live is None:
        return ""
    return f"; {table.keys_live:,} keys, {table.keys_new or 0:,} new and {table.rows_deleted:,} deleted"


def _verify(directory: Path, listing: Listing) -> int:
    problems = [f"{refused.path}: {refused.reason}" for refused in listing.refused]
    damaged = []
    progress = CheckProgress(sum(manifest.total_bytes for manifest in listing.manifests), show=_tell)
    for manifest in listing.manifests:
        try:
            verify(directory, manifest, on_read=progress.add)
        except DamagedError as error:
            problems.append(f"{error.path}: {error.message}")
            damaged.append(manifest)
    intact = [manifest for manifest in listing.manifests if manifest not in damaged]
    way = plan(None, intact, refused=listing.refused)
    if way.problem is not None:
        problems.append(str(way.problem))
    files = sum(len(manifest.files) for manifest in listing.manifests)
    print(f"{counted(len(listing.manifests), 'commit')}, {counted(files, 'file')} checked")
    print(
        f"a server that starts now gets to {way.target}"
        if way.target
        else "a server that starts now has nothing to load"
    )
    _tell_growing(intact)
    for problem in problems:
        print(f"damaged: {problem}", file=sys.stderr)
    return EXIT_DAMAGED if problems or way.target is None else 0


def _tell(done: int, total: int) -> None:
    print(f"hotdelta: checked {format_bytes(done)} of {format_bytes(total)}", file=sys.stderr)


_COMMANDS = {"chain": _show_chain, "describe": _describe, "verify": _verify}


def format_bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        # What is rounded to a thousand is one of the next unit.
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def format_age(seconds: float) -> str:
    if seconds < 0:
        return "in the future"
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hotdelta",
        description="Look at the chain that a trainer writes, and give orders to servers that follow it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text in (
        ("chain", "list every full and delta: kind, position, parent, step, rows, bytes, age"),
        ("describe", "list the variables at the newest position with their class, shape, dtype and bytes"),
        ("verify", "check the digest of every file, and whether the newest position can be reached"),
    ):
        command = commands.add_parser(
            name,
            help=help_text,
            description=f"{help_text[0].upper()}{help_text[1:]}.",
            allow_abbrev=False,
        )
        command.add_argument("directory", metavar="DIR", help="the checkpoint directory of the trainer")
    operator_orders.add_commands(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
