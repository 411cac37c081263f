"""Text as people paste it: decoded, freed of terminal codes, quotes, prompts and log prefixes, cut into lines."""

import functools
import re
from collections import Counter
from dataclasses import dataclass

LARGEST_BYTES = 32 * 2**20
MOST_LINES = 200_000
"""What is larger, or has more lines, is no paste; the largest real one seen has 1 MB."""

LONGEST_LINE = 4096
"""Longer lines hold no table: they are left out, so that no pattern ever meets them."""

_TERMINAL_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, underlines, cursor
    r"|\x1b\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)"  # titles and links
    r"|\x1b[()*+][0-9A-Za-z]"  # character sets
    r"|\x1b[@-Z\\-_]"
    r"|(?:\^\[|\\x1b|\\033|\\e|\\u001b)\[[0-9;]{0,12}m"  # the escape itself printed as text
    r"|\[[0-9]{1,2}(?:;[0-9]{1,3}){0,4}m"  # the escape lost, the rest kept
)
_BLANKS = {
    ord(c): " "
    for c in "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
}
_NOTHING = {ord(c): None for c in "\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\u2066\u2069\ufeff\x00\x07"}
_HYPHENS = {ord(c): "-" for c in "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"}
_CHARACTERS = {**_BLANKS, **_NOTHING, **_HYPHENS, ord("\u2502"): "|", ord("\u2503"): "|", ord("\u2551"): "|"}
_ENTITIES = re.compile(r"&(nbsp|amp|lt|gt|quot|#160|#39);")
_ENTITY = {"nbsp": " ", "#160": " ", "amp": "&", "lt": "<", "gt": ">", "quot": '"', "#39": "'"}
_BREAKS = re.compile(r"\r*\n|\r+|[\x0b\x0c\x85\u2028\u2029]")

_STAMP = r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
_PREFIXES = (
    re.compile(r"(?:[ \t]?>)+ ?"),  # quoted mail, quoted Markdown
    re.compile(_STAMP + r"(?: (?:stdout|stderr) [FP])?[ ]?"),  # log collectors
    re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?\]?[ ]"),
    re.compile(r"\[\d{1,6},\d{1,6}\]<std(?:out|err)>:?"),  # mpirun --tag-output
    re.compile(r"\(\w{1,40} pid=\d{1,8}(?:, ip=[\d.]+)?\) ?"),  # Ray
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,64} \S{1,64}: ?"),  # syslog
    re.compile(r"[ ]{0,6}\[?\d{1,6}\]?:(?=\s|$) ?"),  # srun --label, torchrun
)
_HOST = re.compile(r"(\[?[\w.@-]{1,64}\]?: )")
_DEVICE = re.compile(r"\[?(?:GPU|NPU|NIC|CA|DCU|HCU|MLU)\d*\]?", re.IGNORECASE)
_FENCE = re.compile(r"\s*(?:```|~~~)")


@dataclass(frozen=True, slots=True)
class Paste:
    """Lines of a paste, without their ends.

    Attributes:
        lines: Cleaned lines; a line that was left out is empty, so that numbers stay those of the original.
        is_whole: Whether the last line ended with a line break; where it did not, its last word may be cut.
        left_out: Line numbers (from 1) of lines too long to be part of a table.
        text: All lines, joined by line feeds.
    """

    lines: tuple[str, ...]
    is_whole: bool
    left_out: tuple[int, ...]
    text: str


@functools.lru_cache(maxsize=4)
def read_paste(data: bytes) -> Paste:
    """Returns the lines of pasted text; the same bytes are cleaned once, however many importers ask.

    There are none where the data is no text (an archive), or more than anybody pastes.
    """
    if len(data) > LARGEST_BYTES or _is_binary(data) or data.count(b"\n") + data.count(b"\r") > MOST_LINES:
        return Paste((), is_whole=True, left_out=(), text="")
    text = _BREAKS.sub("\n", _unescaped(_decoded(data)))
    text = _TERMINAL_CODES.sub("", text).translate(_CHARACTERS)
    if "&" in text:
        text = _ENTITIES.sub(lambda m: _ENTITY[m[1]], text)
    is_whole = text.endswith("\n") or not text
    raw = text.split("\n")
    if is_whole and raw:
        raw.pop()
    left_out = tuple(number for number, line in enumerate(raw, 1) if len(line) > LONGEST_LINE)
    kept = ["" if not line or len(line) > LONGEST_LINE or _FENCE.match(line) else line.rstrip(" ") for line in raw]
    lines = tuple(_single_spaced(_without_prefixes(kept)))
    return Paste(lines, is_whole, left_out, "\n".join(lines))


def words(line: str) -> list[str]:
    """Returns the words of a line, separated by blanks, tabs or the bars of a table."""
    return line.replace("|", " ").split()


def _is_binary(data: bytes) -> bool:
    """Whether the first bytes are those of an archive or of noise rather than of text in any encoding."""
    head = data[:4096]
    if head[:2] in {b"\xff\xfe", b"\xfe\xff"} or head[1::2].count(0) > 0.8 * len(head[1::2]):
        return False
    strange = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in head)
    return strange > len(head) * 0.04 + 4


def _decoded(data: bytes) -> str:
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"\xef\xbb\xbf", "utf-8")):
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    # PowerShell's ">" writes UTF-16; a mark lost on the way leaves every second byte zero.
    if len(data) > 8 and data[1:64:2].count(0) > len(data[1:64:2]) * 0.8:
        return data.decode("utf-16-le", "replace")
    return data.decode("utf-8", "replace")


def _unescaped(text: str) -> str:
    r"""Returns the text of a string literal, as a log prints it: its ``\n`` and ``\t`` become what they mean."""
    if text.count("\\n") < 4 or text.count("\\n") < 2 * text.count("\n"):
        return text
    for escaped, meant in (("\\r\\n", "\n"), ("\\n", "\n"), ("\\t", "\t"), ("\\u001b", "\x1b"), ("\\x1b", "\x1b")):
        text = text.replace(escaped, meant)
    return text


def _without_prefixes(lines: list[str]) -> list[str]:
    """Takes off what a log or a mail puts in front of every line, and only what nearly every line has."""
    for _ in range(3):
        filled = [line for line in lines if line.strip()]
        if not filled:
            break
        pattern = next((p for p in _PREFIXES if _share(p, filled) >= 0.9), None)
        if pattern is not None:
            lines = [pattern.sub("", line, count=1) if pattern.match(line) else line for line in lines]
            continue
        host = _common_host(filled)
        if host is None:
            break
        lines = [line.removeprefix(host).removeprefix(host.rstrip()) for line in lines]
    return lines


def _single_spaced(lines: list[str]) -> list[str]:
    """Empties no line but moves nothing: of a text whose every second line is empty, the filled ones stay adjacent."""
    odd, even = lines[1::2], lines[::2]
    for filled, blank in ((even, odd), (odd, even)):
        if len(filled) > 4 and not any(line.strip() for line in blank) and sum(bool(f.strip()) for f in filled) > 3:
            return filled
    return lines


def _share(pattern: re.Pattern[str], filled: list[str]) -> float:
    if len(filled) > 16 and not any(pattern.match(line) for line in filled[:16]):
        return 0.0
    return sum(pattern.match(line) is not None for line in filled) / len(filled)


def _common_host(filled: list[str]) -> str | None:
    """Returns the ``host: `` that pdsh and others print, ``None`` where lines begin differently or with a device."""
    if len(filled) < 3:
        return None
    starts = Counter(m[1] for line in filled if (m := _HOST.match(line)))
    if not starts:
        return None
    host, count = starts.most_common(1)[0]
    count += sum(line == host.rstrip() for line in filled)
    return host if count >= 0.9 * len(filled) and not _DEVICE.fullmatch(host.rstrip(": ")) else None
