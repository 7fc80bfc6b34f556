"""How results are written: for people in colour in a terminal, as plain text elsewhere, as JSON for scripts.

rich is imported only when a terminal is there to show it: it takes longer than most commands. NO_COLOR and TERM=dumb
are answered with plain text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from hotdelta.check_progress import CheckProgress
from hotdelta.terminal import Bar, has_style

if TYPE_CHECKING:
    from rich.table import Table


class Cell(NamedTuple):
    """A text and how rich shows it."""

    text: str
    style: str = ""


Row = Sequence[Cell | str]


def has_unicode(stream: IO[str] | None) -> bool:
    return (getattr(stream, "encoding", None) or "ascii").lower().startswith("utf")


def print_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(header: Sequence[str], rows: Sequence[Row], *, align: str) -> None:
    """`align` has a letter for each column: l, or r for numbers. Without a header there is no line of names."""
    if has_style(sys.stdout):
        _print_rich_table(header, rows, align)
    else:
        print(format_rows(header, rows, align=align))


def format_rows(header: Sequence[str], rows: Sequence[Row], *, align: str) -> str:
    texts = [list(header)] if header else []
    texts += [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if side == "l" else cell.rjust(width)
            for cell, width, side in zip(row, widths, align, strict=True)
        ).rstrip()
        for row in texts
    )


def _printable(cell: Cell | str) -> str:
    """Manifests and servers are written by others: what they say must not move the cursor of a terminal."""
    text = cell.text if isinstance(cell, Cell) else cell
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def print_fields(fields: Sequence[tuple[str, Cell | str]]) -> None:
    """One line for each: its name, and what it is."""
    print_table((), [(Cell(name, "dim"), value) for name, value in fields], align="ll")


def warn(text: str) -> None:
    print(f"hotdelta: {_printable(text)}", file=sys.stderr)


class ByteProgress:
    """How far a work of many bytes is: a bar in a terminal, a line at every gigabyte elsewhere. See `byte_progress`."""

    def __init__(self, what: str, total: int, bar: Bar | None) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._bar = bar
        self._lines = CheckProgress(total, show=self._tell)

    def add(self, count: int) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.tell(f"{self._what} bytes of", self._done, self._total)
        else:
            self._lines.add(count)

    def _tell(self, done: int, total: int) -> None:
        warn(f"{self._what} {format_bytes(done)} of {format_bytes(total)}")


@contextmanager
def byte_progress(what: str, total: int) -> Iterator[ByteProgress]:
    """`what`: a participle, for example "checked". The bar is gone when the block is left."""
    bar = Bar() if has_style(sys.stderr) else None
    try:
        yield ByteProgress(what, total, bar)
    finally:
        if bar is not None:
            bar.stop()


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


def _print_rich_table(header: Sequence[str], rows: Sequence[Row], align: str) -> None:
    from rich.console import Console

    Console().print(rich_table(header, rows, align))


def rich_table(header: Sequence[str], rows: Sequence[Row], align: str, *, gap: int = 2) -> Table:
    """Where the terminal is too narrow words are cut, but no numbers; the last column goes on in the next line."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None, pad_edge=False, show_header=bool(header), header_style="bold", padding=(0, gap, 0, 0)
    )
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    for column, side in enumerate(align):
        is_last = column == len(align) - 1
        texts = [*header[column : column + 1], *(row[column].text for row in cells)]
        table.add_column(
            header[column] if header else "",
            justify="left" if side == "l" else "right",
            min_width=max(map(len, texts), default=0) if side == "r" else None,
            no_wrap=not is_last,
            overflow="fold" if is_last else "ellipsis",
        )
    for row in cells:
        table.add_row(*(Text(_printable(cell), cell.style) for cell in row))
    return table
