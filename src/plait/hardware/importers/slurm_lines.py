"""The common form of Slurm's configuration files: ``Key=Value`` words, comments, lines that go on."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from plait.hardware.importers.paste import read_paste
from plait.hardware.importers.safe_xml import decode

_WORD = re.compile(r'([A-Za-z][A-Za-z0-9_]*)\s*=\s*("[^"]*"|[^\s"]+)(?=\s|$)', re.ASCII)
_COMMENT = re.compile(r"(?<!\\)#.*")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its line, its keys as printed with their values, and whether all of it was understood."""

    line: int
    words: Mapping[str, str]
    is_whole: bool
    text: str

    def get(self, key: str) -> str | None:
        """Returns a value by its key, of which the case does not count; quotes are taken off."""
        value = next((v for k, v in self.words.items() if k.casefold() == key.casefold()), None)
        return value.strip('"') if value is not None else None


def statements(data: bytes) -> Iterator[Statement]:
    """Yields the statements of a file; a backslash at the end of a line joins it with the next."""
    text = ""
    first = 0
    for number, printed in enumerate(_lines(data), 1):
        line = _COMMENT.sub("", printed).rstrip()
        first = first or number
        if line.endswith("\\"):
            text += line[:-1] + " "
            continue
        text += line
        if text.strip():
            yield _statement(first, text.strip())
        text, first = "", 0
    if text.strip():
        yield _statement(first, text.strip())


def _lines(data: bytes) -> list[str]:
    """Returns the lines without what logs and mails put in front; one too long for a paste, as it is."""
    paste = read_paste(data)
    lines = list(paste.lines)
    if paste.left_out:
        plain = decode(data).replace("\r\n", "\n").split("\n")
        for number in paste.left_out:
            if number <= len(plain):
                lines[number - 1] = plain[number - 1]
    return lines


def _statement(line: int, text: str) -> Statement:
    words: dict[str, str] = {}
    is_whole = True
    for match in _WORD.finditer(text):
        is_whole &= match[1].casefold() not in {key.casefold() for key in words}
        words.setdefault(match[1], match[2])
    return Statement(line, words, is_whole and not _WORD.sub("", text).strip(), text)
