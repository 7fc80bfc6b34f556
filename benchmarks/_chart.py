"""Horizontal bars as SVG, for pages that are read in light and in dark: one picture, no library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

_WIDTH = 760
_LABEL_WIDTH = 230
_VALUE_WIDTH = 110
_ROW = 26
_BAR = 16
_HEAD = 44
_GROUP = 30
_FOOT = 14

_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 15px }
  .group { font-weight: 600 }
  .muted { fill: #59636e }
  .bar { fill: #8c959f }
  .ours { fill: #0969da }
  .page { fill: #ffffff }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .muted { fill: #9198a1 }
    .bar { fill: #656c76 }
    .ours { fill: #4493f8 }
    .page { fill: #0d1117 }
  }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    shown: str
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that share a scale: the longest fills the width."""

    title: str
    bars: Sequence[Bar]


def draw_bars(title: str, groups: Sequence[Group]) -> str:
    """The picture; its title is also its name for whoever cannot see it."""
    height = _HEAD + sum(_GROUP + _ROW * len(group.bars) for group in groups) + _FOOT
    size = f'viewBox="0 0 {_WIDTH} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}" rx="6"/>',
        f'<text class="title" x="16" y="28">{escape(title)}</text>',
    ]
    top = _HEAD
    for group in groups:
        lines.append(f'<text class="group" x="16" y="{top + 16}">{escape(group.title)}</text>')
        top += _GROUP
        longest = max(bar.value for bar in group.bars)
        for bar in group.bars:
            lines += _draw_bar(bar, top, bar.value / longest if longest else 0.0)
            top += _ROW
    return "\n".join([*lines, "</svg>", ""])


def write_bars(path: Path, title: str, groups: Sequence[Group]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw_bars(title, groups), encoding="utf-8")


def _draw_bar(bar: Bar, top: int, share: float) -> Sequence[str]:
    length = max(share * (_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH), 1.0)
    kind = "ours" if bar.is_ours else "bar"
    middle = top + _BAR - 3
    return (
        f'<text x="{_LABEL_WIDTH - 10}" y="{middle}" text-anchor="end">{escape(bar.label)}</text>',
        f'<rect class="{kind}" x="{_LABEL_WIDTH}" y="{top}" width="{length:.1f}" height="{_BAR}" rx="2"/>',
        f'<text class="muted" x="{_LABEL_WIDTH + length + 8:.1f}" y="{middle}">{escape(bar.shown)}</text>',
    )
