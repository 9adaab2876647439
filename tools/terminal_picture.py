"""Draws what a command printed as PNG and SVG.

`./fleet doctor | python tools/terminal_picture.py docs/pictures/doctor`
"""

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

_STYLE: Any = {"font.family": "monospace", "font.size": 9, "svg.hashsalt": "gb10-serving", "svg.fonttype": "path"}
_COLUMN_INCHES, _LINE_INCHES, _MARGIN_INCHES = 0.0762, 0.165, 0.15
_COLUMNS = 132


def draw(printed: str, path: Path, columns: int = _COLUMNS) -> None:
    """Draws text with its ANSI colours, long lines folded, as `path`.png and `path`.svg."""
    console = Console(width=columns, color_system="truecolor", force_terminal=True)
    lines = [line for text in printed.splitlines() for line in _folded(console, text, columns)]
    width = max((line.cell_len for line in lines), default=1) * _COLUMN_INCHES + 2 * _MARGIN_INCHES
    height = len(lines) * _LINE_INCHES + 2 * _MARGIN_INCHES
    with pyplot.rc_context(_STYLE):
        figure = pyplot.figure(figsize=(width, height), facecolor="#1e1e1e")
        for row, line in enumerate(lines):
            column = 0
            for segment in line.render(console):
                style = segment.style
                colour = style.color.get_truecolor(MONOKAI).hex if style and style.color else "#d4d4d4"
                figure.text(
                    (_MARGIN_INCHES + column * _COLUMN_INCHES) / width,
                    1 - (_MARGIN_INCHES + (row + 0.8) * _LINE_INCHES) / height,
                    segment.text.rstrip("\n").replace("$", r"\$"),
                    color=colour,
                    weight="bold" if style and style.bold else "normal",
                )
                column += len(segment.text.rstrip("\n"))
        figure.savefig(path.with_suffix(".png"), dpi=144, facecolor=figure.get_facecolor())
        figure.savefig(path.with_suffix(".svg"), facecolor=figure.get_facecolor(), metadata={"Date": None})
        pyplot.close(figure)


def _folded(console: Console, text: str, columns: int) -> list[Text]:
    return list(Text.from_ansi(text).wrap(console, columns, no_wrap=False)) or [Text("")]


if __name__ == "__main__":
    draw(sys.stdin.read(), Path(sys.argv[1]))
