"""Small files of ``/sys``: one value each."""

from plait.hardware.context import Context


def text_of(context: Context, path: str) -> str | None:
    """Returns a file's text without surrounding blanks, ``None`` where it cannot be read."""
    data = context.read(path)
    return None if data is None else data.decode("utf-8", "replace").strip("\0 \t\r\n")


def number_of(context: Context, path: str) -> int | None:
    """Returns a whole number of 0 or more; ``None`` for a missing file, for -1 and for what is no number."""
    text = text_of(context, path)
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None


def properties_of(context: Context, path: str) -> dict[str, int]:
    """Returns the numbers of a file with a name and a number a line, as KFD writes them."""
    found = {}
    for line in (text_of(context, path) or "").splitlines():
        name, _, value = line.strip().partition(" ")
        value = value.strip()
        if value.isascii() and value.isdigit() and len(value) < 24:
            found[name] = int(value)
    return found
