"""Damage as pastes suffer it, seeded, and what counts as invented afterwards.

Two sorts. *Presentation* changes how a text looks and nothing that it says: colours, line ends, quotes, log prefixes,
other blanks. *Damage* loses or adds something: rows, columns, words, characters, the end. A lost or foreign character
never makes another valid word: letters and separators get lost and signs that no tool prints come in. Digits, and names
that people choose (in quotes, or small letters with a number), are left alone: ``NV12`` without its 1 is the table of
another machine.
"""

import random
import re
from collections.abc import Callable, Iterable

from plait.hardware.topology import Component, Fragment

_JUNK = "\u00a7\u20ac\ufffd~\u00bf\u2588\u263a^"
_WORDS = ("\u00a7\u00a7", "\u2588\u2588\u2588", "[...]", "\ufffd", "<snip>")

_OF_A_TREE = re.compile(r"[+\\]-[0-9a-f]{2}\.[0-7]")

_LOCALITY = ("cpus", "numa_nodes", "gpu_numa_node")
_SIZES = ("memory_bytes", "rate_bytes_per_s")

Mutation = Callable[[str, random.Random], str]


def _lines(change: Callable[[list[str], random.Random], Iterable[str]]) -> Mutation:
    def mutate(text: str, rng: random.Random) -> str:
        return "\n".join(change(text.split("\n"), rng))

    return mutate


def _coloured(text: str, rng: random.Random) -> str:
    codes = ("\x1b[0m", "\x1b[1;32m", "\x1b[4m", "\x1b[K", "\x1b]0;title\x07", "\x1b(B")
    words = re.split(r"(\s+)", text)
    return "".join(rng.choice(codes) + w if w.strip() and rng.random() < 0.1 else w for w in words)


def _stamped(lines: list[str], rng: random.Random) -> Iterable[str]:
    second = rng.randrange(60)
    return [
        f"2024-05-17T10:{second:02d}:{i % 60:02d}.{rng.randrange(10**6):06d}Z {line}" for i, line in enumerate(lines)
    ]


def _surrounded(text: str, rng: random.Random) -> str:
    before = (
        "Hi, here is what you asked for:\n\n",
        "user@host:~$ cat out.txt\n",
        "### Environment\n\n```\n",
        "[root@n1 ~]# \n",
    )
    after = ("\n\nThanks!\n", "\nuser@host:~$ \n", "\n```\n", "\n(end)\n")
    return rng.choice(before) + text.rstrip("\n") + rng.choice(after)


def _other_blanks(text: str, rng: random.Random) -> str:
    blank = rng.choice("\u00a0\u2007\u202f\u2003")
    return "".join(blank if c == " " and rng.random() < 0.5 else c for c in text)


def _unseen_characters(text: str, rng: random.Random) -> str:
    return "".join(c + "\u200b" if c in " \t" and rng.random() < 0.05 else c for c in text)


PRESENTATION: dict[str, Mutation] = {
    "crlf": lambda text, _: text.replace("\n", "\r\n"),
    "cr_cr_lf": lambda text, _: text.replace("\n", "\r\r\n"),
    "colours": _coloured,
    "quoted": _lines(lambda lines, _: [f"> {line}" for line in lines]),
    "indented": _lines(lambda lines, _: [f"    {line}" for line in lines]),
    "stamped": _lines(_stamped),
    "host": _lines(lambda lines, _: [f"gpu-node-17: {line}" for line in lines]),
    "rank": _lines(lambda lines, _: [f"[1,0]<stdout>:{line}" for line in lines]),
    "surrounded": _surrounded,
    "other_blanks": _other_blanks,
    "unseen_characters": _unseen_characters,
    "trailing_blanks": _lines(lambda lines, rng: [line + " " * rng.randrange(9) for line in lines]),
    "byte_order_mark": lambda text, _: "\ufeff" + text,
    "blank_lines": _lines(lambda lines, _: [part for line in lines for part in (line, "")]),
}
"""Keep every fact of a text; the first fourteen of what users do to one."""


def _without_rows(lines: list[str], rng: random.Random) -> Iterable[str]:
    """Cuts rows out; a cut over the end of a paragraph leaves the paragraphs apart, one in a drawn tree leaves dots.

    Without a mark both would be valid dumps of other machines.
    """
    start = rng.randrange(len(lines))
    end = start + rng.randrange(1, 2 + len(lines) // 3)
    gap = [""] if any(not line.strip() for line in lines[start:end]) else []
    gap = ["..."] if any(_OF_A_TREE.search(line) for line in lines) else gap
    return lines[:start] + gap + lines[end:]


def _narrow(lines: list[str], rng: random.Random) -> Iterable[str]:
    """Cuts every line at one width; a name that people choose is not cut inside, a piece of one is another name."""
    width = rng.randrange(4, 4 + max(4, *map(len, lines)))
    for line in lines:
        is_inside = line[width - 1 : width + 1].replace("_", "a").isalnum() and len(line) > width
        yield re.sub(r"\b[a-z]\w*$", "", line[:width]) if is_inside else line[:width]


def _wrapped(lines: list[str], rng: random.Random) -> Iterable[str]:
    width = rng.choice((40, 60, 72, 80, 100))
    return [
        line.expandtabs(8)[at : at + width] for line in lines for at in range(0, max(1, len(line.expandtabs(8))), width)
    ]


def _shuffled(lines: list[str], rng: random.Random) -> Iterable[str]:
    """Puts lines into another order; those of a drawn tree keep theirs, another order is another tree."""
    if any(_OF_A_TREE.search(line) for line in lines):
        return lines
    start = rng.randrange(len(lines))
    piece = lines[start : start + rng.randrange(2, 8)]
    rng.shuffle(piece)
    return lines[:start] + piece + lines[start + len(piece) :]


def _repeated(lines: list[str], rng: random.Random) -> Iterable[str]:
    at = rng.randrange(len(lines))
    return lines[:at] + [lines[at]] * rng.randrange(1, 4) + lines[at:]


def _joined(text: str, rng: random.Random) -> str:
    ends = [m.start() for m in re.finditer("\n", text)]
    at = rng.choice(ends) if ends else 0
    return text[:at] + text[at + 1 :]


def _broken(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + "\n" + text[at:]


def _lost(text: str, rng: random.Random) -> str:
    kept = list(text)
    quoted = {i for m in re.finditer(r"'[^'\n]*'|\"[^\"\n]*\"", text) for i in range(*m.span())}
    chosen = {i for m in re.finditer(r"\b[a-z][\w.-]*\d\w*", text) for i in range(*m.span())}
    places = [i for i, c in enumerate(kept) if not c.isdigit() and c != "\n" and i not in quoted | chosen]
    for at in rng.sample(places, min(len(places), rng.randrange(1, 6))):
        kept[at] = ""
    return "".join(kept)


def _foreign(text: str, rng: random.Random) -> str:
    changed = list(text)
    for at in rng.sample(range(len(changed)), min(len(changed), rng.randrange(1, 8))):
        changed[at] = rng.choice(_JUNK) if changed[at] != "\n" else "\n"
    return "".join(changed)


def _word_changed(text: str, rng: random.Random) -> str:
    words = re.split(r"(\s+)", text)
    places = [i for i, word in enumerate(words) if word.strip()]
    for at in rng.sample(places, min(len(places), rng.randrange(1, 4))):
        words[at] = rng.choice(("", rng.choice(_WORDS), f"{words[at]} {rng.choice(_WORDS)}"))
    return "".join(words)


def _collapsed(text: str, _rng: random.Random) -> str:
    return re.sub(r"[ \t]+", " ", text)


def _glued(text: str, rng: random.Random) -> str:
    return re.sub(r"[ \t]+", lambda m: "" if rng.random() < 0.05 else m[0], text)


def _doubled(text: str, rng: random.Random) -> str:
    return text + rng.choice(("", "\n", "\n\n")) + text


def _without_end(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _without_beginning(text: str, rng: random.Random) -> str:
    return text[rng.randrange(len(text) + 1) :]


DAMAGE: dict[str, Mutation] = {
    "without_rows": _lines(_without_rows),
    "narrow": _lines(_narrow),
    "wrapped": _lines(_wrapped),
    "shuffled": _lines(_shuffled),
    "repeated": _lines(_repeated),
    "joined": _joined,
    "broken": _broken,
    "lost": _lost,
    "foreign": _foreign,
    "word_changed": _word_changed,
    "collapsed": _collapsed,
    "glued": _glued,
    "doubled": _doubled,
    "without_end": _without_end,
    "without_beginning": _without_beginning,
}
"""Lose or add something; facts may only become fewer."""


def mutated(data: bytes, seed: int) -> tuple[bytes, tuple[str, ...]]:
    """Returns a damaged copy of a dump and the names of what was done to it: one to three mutations, then raw bytes.

    One in eight ends in bytes that are no text at all.
    """
    rng = random.Random(seed)
    text = data.decode("utf-8", "surrogateescape")
    table = PRESENTATION | DAMAGE
    names = [rng.choice(tuple(DAMAGE)), *rng.sample(tuple(table), rng.randrange(3))]
    rng.shuffle(names)
    for name in names:
        if text:
            text = table[name](text, rng)
    result = text.encode("utf-8", "surrogateescape")
    if rng.randrange(8) == 0:
        at = rng.randrange(len(result) + 1)
        result = result[:at] + bytes(rng.choice((0x00, 0x80, 0xFF, 0xFE)) for _ in range(3)) + result[at:]
        names.append("bytes")
    return result, tuple(names)


def _identities(component: Component) -> set[str]:
    """What a device is called; an address also without its domain, which a fragment of a tree does not show."""
    called = {component.key, component.name, component.pci_address, component.uuid}
    if component.pci_address is not None:
        called.add(component.pci_address.partition(":")[2])
    return {identity for identity in called if identity}


def invented(truth: Fragment, found: Fragment) -> tuple[str, ...]:
    """Returns the devices and links of a damaged dump that the whole one does not have, as sentences.

    A device is known where its key, name, address or UUID is one of a device of the truth. A link is known where the
    truth has the same pair with the same kind and count. Not counted: kind ``unknown``, which claims nothing, and pairs
    whose two halves disagree, because those are told as a conflict.
    """
    names = {identity for c in truth.components for identity in _identities(c)}
    new = [f"device {c.key} ({c.kind})" for c in found.components if not names & _identities(c)]
    called = {identity: c.key for c in truth.components for identity in _identities(c)}
    links = {(frozenset((link.a, link.b)), link.kind, link.count) for link in truth.links}
    subjects = {conflict.subject for conflict in found.conflicts}
    for link in found.links:
        ends = frozenset(called.get(end, end) for end in (link.a, link.b))
        told = {f"link of {link.a} and {link.b}", f"link of {link.b} and {link.a}"} & subjects
        if link.kind != "unknown" and (ends, link.kind, link.count) not in links and not told:
            new.append(f"link {link.a} - {link.b} {link.kind} x{link.count}")
    return tuple(new)


def beyond(truth: Fragment, found: Fragment) -> tuple[str, ...]:
    """Returns what a cut dump says that the whole one does not: :func:`invented`, and other CPUs, nodes and sizes.

    Measured rates are left out: the best of several tables is another one where some are cut off.
    """
    wrong = list(invented(truth, found))
    for component in found.components:
        known = truth.component(component.key)
        if known is None:
            continue
        pairs = [(name, getattr(component.locality, name), getattr(known.locality, name)) for name in _LOCALITY]
        pairs += [(name, getattr(component, name).value, getattr(known, name).value) for name in _SIZES]
        pairs += [("model", component.model, known.model), ("parent", component.parent, known.parent)]
        wrong += [
            f"{component.key}: {name} {part}, not {whole}"
            for name, part, whole in pairs
            if part is not None and part != whole
        ]
    return tuple(wrong)
