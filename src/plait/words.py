"""The nearest right word for a wrong one."""

import difflib
import re
from collections.abc import Iterable

_NEAR = 0.66
"""Least likeness of a suggestion: below it, chance matches outnumber slips of the pen."""

_SLIP = 0.9
"""From this likeness on it is a slip of the pen, whatever parts of the word are options themselves."""


def nearest(word: str, options: Iterable[str]) -> str | None:
    """Returns the option that ``word`` was probably meant to be, or ``None`` where none is near.

    Case and separators do not count; a vendor's long name finds the short one (``NVIDIA A100-SXM4-80GB``: ``A100``).
    """
    folded = {_fold(option): option for option in sorted(options)}
    wanted = _fold(word)
    if not wanted:
        return None
    if wanted in folded:
        return folded[wanted]
    close = max(folded, key=lambda key: (likeness(wanted, key), -len(key)), default="")
    if likeness(wanted, close) >= _SLIP:
        return folded[close]
    for part in re.split(r"[^A-Za-z0-9]+", word):
        if part.casefold() in folded:
            return folded[part.casefold()]
    if likeness(wanted, close) >= _NEAR:
        return folded[close]
    holding = [option for key, option in folded.items() if len(wanted) >= 3 and wanted in key]
    return holding[0] if len(holding) == 1 else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Returns ``; did you mean 'x'?`` or nothing, to be put behind a message."""
    near = nearest(word, options)
    return f"; did you mean {near!r}?" if near else ""


def likeness(word: str, other: str) -> float:
    """Returns how alike two words are, from 0 to 1; case and separators do not count."""
    return difflib.SequenceMatcher(None, _fold(word)[:100], _fold(other)[:100]).ratio()


def _fold(word: str) -> str:
    return re.sub(r"[-_\s]", "", word).casefold()
