"""Small pieces of HTML for notebooks: `table`."""

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


def preformatted(text: object) -> str:
    """Text in which spaces and line ends count."""
    return f"<pre>{escaped(text)}</pre>"
