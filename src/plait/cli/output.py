"""How verbs speak: one JSON document for programs, or tables and lines for people."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPED_COLUMNS = 200
"""Width of tables where stdout is no terminal: wide enough that programs such as grep see whole rows."""


def print_json(document: object) -> None:
    """Writes one JSON document and a newline to stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def say(line: str) -> None:
    """Writes one plain line to stdout at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def warn(line: str) -> None:
    """Writes one plain line to stderr at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def console() -> "Console":
    """Returns a console on stdout; piped output is plain and wide."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=int(os.environ.get("COLUMNS", PIPED_COLUMNS)))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Prints rows under ``columns``; a column whose name begins with ``>`` is right-aligned. None prints as ``-``."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        table.add_row(*("-" if cell is None else escape(str(cell)) for cell in row))
    console().print(table)


def print_reasons(reasons: Iterable[str], indent: str = "  ") -> None:
    """Prints one reason a line, indented."""
    for reason in reasons:
        say(f"{indent}{reason}")


def counted(number: int, noun: str) -> str:
    """Returns ``1 worker`` or ``2 workers``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('ch') else 's'}"


def human_bytes(value: int | None) -> str | None:
    """Returns ``40 GiB`` for 40 * 2**30; None stays None."""
    if value is None:
        return None
    amount, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.4g} {unit}"


def human_duration(seconds: float | None) -> str | None:
    """Returns ``3m 20s`` for 200; None stays None."""
    if seconds is None:
        return None
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
