"""Tables and text as people see them: HTML for notebooks (`table`), and `columns` for terminals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tracegrad.errors import printable


def escaped(text: object) -> str:
    """Text as HTML, whatever it holds."""
    return escape("\n".join(map(printable, str(text).split("\n"))))


def table(head: Sequence[object], rows: Iterable[Sequence[object]], caption: str = "", notes: Sequence[str] = ()) -> str:
    """A table, with a line above it, and lines below it."""
    above = f"<p>{escaped(caption)}</p>" if caption else ""
    heads = "".join(f"<th>{escaped(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f'<td style="text-align:left">{escaped(cell)}</td>' for cell in row) + "</tr>" for row in rows)
    below = "".join(f"<p>{escaped(note)}</p>" for note in notes)
    return f"<div>{above}<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{below}</div>"


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """The lines of a table as text. right: the columns that end, and do not begin, below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))] for row in rows]
    return ["  ".join(line).rstrip() for line in lines]


def preformatted(text: object) -> str:
    """Text in which spaces and line ends count."""
    return f"<pre>{escaped(text)}</pre>"
