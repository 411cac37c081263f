"""Pasted topology: what only changes its looks keeps every fact, a cut leaves a subset, damage invents nothing."""

import contextlib
import functools
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plait.hardware.importers import IMPORTERS, read_dump
from plait.hardware.importers.importer import Importer, UnreadableDump
from plait.hardware.topology import Fragment

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from topology_facts.mutate import PRESENTATION, beyond, invented, mutated  # noqa: E402

NIC_NAMES = (
    "mlx5_{}", "mlx5_bond_{}", "NIC{}", "ib{}", "bnxt_re{}", "irdma{}", "hns_{}", "efa_{}", "rocep{}s0f0", "rdmap{}s27",
    "mlx4_{}", "erdma_{}", "mana_{}",
)  # fmt: skip
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


@dataclass
class Machine:
    """A made-up machine and what a right reading of its matrix is."""

    gpus: list[str]
    nics: list[str]
    cells: dict[tuple[str, str], str]
    tails: dict[str, list[str]]
    titles: list[str]
    legend: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [*self.gpus, *self.nics]

    def cell(self, a: str, b: str) -> str:
        return " X " if a == b else self.cells[a, b]

    def rows(self) -> list[list[str]]:
        return [[a, *(self.cell(a, b) for b in self.names), *self.tails.get(a, [])] for a in self.names]


def machine(seed: int) -> Machine:
    rng = random.Random(seed)
    gpus = [f"GPU{i}" for i in range(rng.choice((1, 2, 3, 4, 8, 16)))]
    pattern = rng.choice(NIC_NAMES)
    nics = [pattern.format(i) for i in range(rng.choice((0, 0, 1, 2, 4, 10)))]
    words = ["SYS", "NODE", "PHB", "PXB", "PIX"]
    linked = rng.choice(("NV1", "NV2", "NV4", "NV12", "NV18", "SYS"))
    cells = {}
    for i, a in enumerate([*gpus, *nics]):
        for b in [*gpus, *nics][i + 1 :]:
            word = linked if b in gpus and rng.random() < 0.6 else rng.choice(words)
            cells[a, b] = cells[b, a] = word
    style = rng.randrange(4)
    titles = (
        ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"],
        ["CPU Affinity", "NUMA Affinity"],
        ["CPU Affinity"],
        [],
    )[style]
    tails = {}
    for i, gpu in enumerate(gpus):
        node = 2 * i // len(gpus)
        cpus = rng.choice(
            (f"{node * 32}-{node * 32 + 31}", f"{node * 32}-{node * 32 + 15},{64 + node * 32}-{95 + node * 32}")
        )
        tails[gpu] = ([cpus, str(node), "", "N/A"], [cpus, str(node)], [cpus], [])[style]
    legend = {nic: f"mlx5_{i + 2}" for i, nic in enumerate(nics)} if nics and nics[0].startswith("NIC") else {}
    return Machine(gpus, nics, cells, tails, titles, legend)


def tabbed(m: Machine) -> str:
    """As the tool prints it."""
    lines = ["\t" + "\t".join([*m.names, *m.titles]), *("\t".join(row) for row in m.rows())]
    return "\n".join(lines) + "\n" + LEGEND + legend_of_nics(m)


def aligned(m: Machine) -> str:
    """With blanks, as terminals and editors make of it."""
    width = max(map(len, m.names)) + 2
    lines = [" " * width + "".join(name.ljust(width) for name in m.names) + "   ".join(m.titles)]
    size = 1 + len(m.names)
    lines.extend(
        "".join(cell.ljust(width) for cell in row[:size]) + "   ".join(f for f in row[size:] if f) for row in m.rows()
    )
    return "\n".join(lines) + "\n"


def legend_of_nics(m: Machine) -> str:
    if not m.legend:
        return ""
    return "\nNIC Legend:\n\n" + "".join(f"  {nic}: {device}\n" for nic, device in m.legend.items())


def table(m: Machine) -> str:
    """As a Markdown table."""
    head = "| | " + " | ".join([*m.names, *m.titles]) + " |"
    rows = ["| " + " | ".join(f for f in row if f) + " |" for row in m.rows()]
    return "\n".join([head, "|---" * (1 + len(m.names) + len(m.titles)) + "|", *rows]) + "\n"


def collapsed(m: Machine) -> str:
    """Every run of blanks became one blank."""
    return "\n".join(" ".join(line.split()) for line in tabbed(m).splitlines()) + "\n"


def wrapped(m: Machine) -> str:
    """A terminal of 80 columns broke the lines wherever its edge was."""
    text = "\n".join("\t".join(row) for row in [["", *m.names, *m.titles], *m.rows()]).expandtabs(8)
    return "\n".join(line[at : at + 80] for line in text.split("\n") for at in range(0, max(1, len(line)), 80)) + "\n"


def glued_header(m: Machine) -> str:
    """The names of the accelerators ran together; as seen in old notes."""
    lines = tabbed(m).split("\n")
    lines[0] = "\t    " + "".join(m.gpus) + "\t" + "\t".join([*m.nics, *m.titles])
    return "\n".join(lines)


def unescaped(m: Machine) -> str:
    """A log printed the text as a string literal."""
    return repr(tabbed(m))[1:-1] + "\n"


LAYOUTS = (tabbed, aligned, table, collapsed, glued_header, unescaped)


def check(fragment: Fragment, m: Machine) -> None:
    """Asserts that a fragment says everything that the machine's matrix says."""
    assert [c.name for c in fragment.components] == m.names
    said = {}
    for link in fragment.links:
        said[link.a, link.b] = said[link.b, link.a] = link.raw
    assert said == m.cells
    for gpu in fragment.components[: len(m.gpus)]:
        tail = [f for f in m.tails[gpu.name] if f]
        assert gpu.locality.cpus == (cpus(tail[0]) if tail else None)
        if len(m.titles) > 1:
            assert gpu.locality.numa_nodes == (int(tail[1]),)
    assert not fragment.conflicts


def cpus(printed: str) -> frozenset[int]:
    spans = [part.split("-") for part in printed.split(",")]
    return frozenset(n for first, last in spans for n in range(int(first), int(last) + 1))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("seed", range(30))
def test_every_layout_of_a_matrix_says_the_same(seed: int, layout: Callable[[Machine], str]) -> None:
    m = machine(seed)
    check(read_dump(layout(m).encode(), "x"), m)


@pytest.mark.parametrize("seed", range(40))
def test_lines_broken_at_the_edge_of_a_terminal_are_joined(seed: int) -> None:
    m = machine(seed)
    fragment = read_dump(wrapped(m).encode(), "x")
    assert [c.name for c in fragment.components] == m.names
    assert {frozenset((link.a, link.b)): link.raw for link in fragment.links} == {
        frozenset(pair): cell for pair, cell in m.cells.items()
    }


@pytest.mark.parametrize("name", PRESENTATION)
@pytest.mark.parametrize("seed", range(12))
def test_looks_change_no_fact(seed: int, name: str) -> None:
    m = machine(seed)
    rng = random.Random(seed)
    for layout in (tabbed, aligned):
        check(read_dump(PRESENTATION[name](layout(m), rng).encode(), "x"), m)


@pytest.mark.parametrize("seed", range(12))
def test_a_cut_text_says_a_subset(seed: int) -> None:
    m = machine(seed)
    for layout in (tabbed, aligned):
        whole_text = layout(m).encode()
        whole = read_dump(whole_text, "x")
        step = max(1, len(whole_text) // 150)
        for end in range(seed % step, len(whole_text), step):
            assert beyond(whole, read_or_nothing(whole_text[:end])) == ()


def read_or_nothing(data: bytes) -> Fragment:
    try:
        return read_dump(data, "x")
    except UnreadableDump:
        return Fragment(origin="", format="")


@functools.cache
def whole(seed: int) -> tuple[bytes, Fragment]:
    text = (tabbed, aligned)[seed % 2](machine(seed)).encode()
    return text, read_dump(text, "x")


def damaged(seeds: range) -> list[str]:
    """Returns what damaged copies of made-up matrices invent; anything but a refusal ends the test."""
    wrong = []
    for seed in seeds:
        text, truth = whole(seed % 200)
        found = read_or_nothing(mutated(text, seed)[0])
        wrong += [f"seed {seed}: {what}" for what in invented(truth, found)]
    return wrong


def test_damage_invents_nothing() -> None:
    assert damaged(range(300)) == []


@pytest.mark.slow
@pytest.mark.parametrize("thousand", range(1, 11))
def test_ten_thousand_damaged_matrices_invent_nothing(thousand: int) -> None:
    assert damaged(range(1000 * thousand, 1000 * thousand + 1000)) == []


GARBAGE: dict[str, Callable[[random.Random], bytes]] = {
    "noise": lambda rng: rng.randbytes(2**20),
    "one_long_line": lambda rng: b"GPU0 " * (2**20 // 5),
    "headers": lambda rng: b"\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\n" * 32_000,
    "rows": lambda rng: b"GPU0\t X \tNV1\n" * 80_000,
    "blank_lines": lambda rng: b"\n" * 2**20,
    "blanks": lambda rng: b" " * 2**20,
    "bars": lambda rng: b"|" * 2**20,
    "digits": lambda rng: b"0123456789 " * (2**20 // 11),
    "tree": lambda rng: b" |  +-00.0-[01-ff]--+-00.0\n" * 40_000,
    "numbers": lambda rng: b" 0 1 2 3 4 5 6 7 8 9\n" * 50_000,
    "angle_brackets": lambda rng: b"<nvidia_smi_log><gpu>" * 50_000,
    "escapes": lambda rng: b"\x1b[31m\x1b]0;" * 90_000,
    "quotes": lambda rng: b"> " * 2**19,
    "words": lambda rng: b"".join(
        rng.choice((b"GPU0", b"NV12", b"X", b"\n", b" ", b"0-31", b"N/A")) for _ in range(300_000)
    ),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_a_megabyte_of_garbage_takes_about_a_second_of_the_processor_at_most(name: str) -> None:
    data = GARBAGE[name](random.Random(7))[: 2**20]
    started = time.process_time()
    with contextlib.suppress(UnreadableDump):
        read_dump(data, "x")
    assert time.process_time() - started < 2.0  # on a busy machine; an idle one takes half


@pytest.mark.parametrize("importer", IMPORTERS, ids=lambda importer: importer.name)
@pytest.mark.parametrize("name", ["noise", "headers", "rows", "tree", "numbers", "angle_brackets", "words"])
def test_no_importer_chokes_on_garbage_that_another_kind_is_made_of(name: str, importer: Importer) -> None:
    data = GARBAGE[name](random.Random(7))[: 2**16]
    with contextlib.suppress(UnreadableDump):
        importer.read(data, "x")
