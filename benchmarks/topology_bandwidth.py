"""How near the cost model comes to measured pairs, and to all pairs at once.

Every file under ``CORPUS/measured`` is read; the model of its devices is in the file or in the column ``hardware`` of
``CORPUS/index.tsv``. The prediction knows the model, the wiring that the file or that column tells, and nothing that
was measured. Files whose model nobody states are counted apart.

Contended cases are three machines of eight PCI Express 5 cards with every card writing to every other
(voipmonitor/rtx6kpro@29f3863, p2pmark): known are the wiring, the card and the processor.
"""

import csv
import dataclasses
import itertools
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from plait.hardware.affinity import AffinityMatrix, build
from plait.hardware.affinity.measured import bandwidth_unit, is_column_to_row
from plait.hardware.cost_model import estimate_host, estimate_line
from plait.hardware.importers import read_dump
from plait.hardware.importers.importer import UnreadableDump
from plait.hardware.link_rates import ports_of
from plait.hardware.topology import Component, Fragment, Link, LinkKind, Measurement
from plait.hardware.values import UNKNOWN
from report import arguments, finish

NEAR_RATIO = 0.25
CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
LINE_RATES = {"EDR": 12.5e9, "HDR": 25e9, "NDR": 50e9, "XDR": 100e9}


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """One measured figure beside what was predicted; ``None`` where the model says unknown."""

    file: str
    what: str
    measured: float
    predicted: float | None
    is_model_known: bool

    @property
    def error(self) -> float | None:
        return None if self.predicted is None else abs(self.predicted / self.measured - 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Contended:
    """A machine with the link of each pair of cards by their numbers, and what it reached with all pairs at once."""

    name: str
    cpu: str
    size: int
    measured: float
    kind: Callable[[int, int], LinkKind]


CONTENDED = (
    Contended(  # two switches with four cards each under a third
        "3 switches, one CPU",
        "AMD Ryzen Threadripper PRO 7955WX",
        8,
        191.8e9,
        lambda i, j: "pix" if i // 4 == j // 4 else "pxb",
    ),
    Contended(
        "two sockets, cards direct", "AMD EPYC 9575F", 8, 173.1e9, lambda i, j: "node" if i // 4 == j // 4 else "sys"
    ),
    Contended(  # two cards behind each of four uplinks, two uplinks a socket
        "2 switch chips, two sockets",
        "AMD EPYC 9575F",
        8,
        51.7e9,
        lambda i, j: "pix" if i // 2 == j // 2 else "node" if i // 4 == j // 4 else "sys",
    ),
    Contended("4 cards, one switch", "AMD Ryzen Threadripper PRO 7955WX", 4, 138.3e9, lambda _i, _j: "pix"),
    Contended("4 cards, one socket", "AMD EPYC 9575F", 4, 129.7e9, lambda _i, _j: "node"),
)


def model_in(text: str) -> str | None:
    """Returns the longest run of words in a description that names a model, ``None`` where none does."""
    words = re.sub(r"[(),;]", " ", re.sub(r"\b\d+ ?x ", " ", text)).split()
    spans = (
        " ".join(words[i : i + length])
        for length in range(min(5, len(words)), 0, -1)
        for i in range(len(words) - length + 1)
    )
    return next((span for span in spans if ports_of(span) is not None), None)


def pairs_of_corpus(corpus: Path) -> Iterator[Pair]:
    """Yields every measured pair of the corpus: device to device, host to device, NIC to NIC."""
    with (corpus / "index.tsv").open(encoding="utf-8", newline="") as file:
        about = {row["file"]: row.get("hardware") or "" for row in csv.DictReader(file, delimiter="\t")}
    for path in sorted((corpus / "measured").iterdir()):
        try:
            fragment = read_dump(path.read_bytes(), path.name)
        except UnreadableDump:
            continue
        told = about.get(f"measured/{path.name}", "")
        for table in fragment.measurements:
            if table.columns and all(re.fullmatch(r"(GPU)?\d+", name) for name in table.columns):
                yield from _device_pairs(path.name, fragment, table, told)
            else:
                yield from _single_figures(path.name, table, told)


def _device_pairs(name: str, fragment: Fragment, table: Measurement, told: str) -> Iterator[Pair]:
    scale = bandwidth_unit(table)
    if scale is None:
        return
    matrix = build({"n": _without_figures(fragment, table, told)})
    is_known = all(model is not None for model in matrix.models)
    for row, cells in table.rows:
        for column, cell in zip(table.columns, cells, strict=False):
            i, j = (int(re.sub(r"\D", "", label)) for label in (row, column))
            if i == j or not cell or max(i, j) >= len(matrix.devices):
                continue
            ends = (j, i) if is_column_to_row(table) else (i, j)
            predicted = matrix.cell(*(matrix.devices[end] for end in ends)).value
            what = table.title or "device to device"
            yield Pair(name, what, cell * scale, predicted, is_known)


def _without_figures(fragment: Fragment, table: Measurement, told: str) -> Fragment:
    """Returns what is known before measuring: the wiring and the models."""
    model = model_in(told)
    cpu = next((word for word in (re.findall(r"(?:EPYC|Xeon)[\w ]*\d\w*", told)) if word), None)
    components = tuple(
        dataclasses.replace(c, model=c.model or model) if c.kind in {"gpu", "npu"} else c for c in fragment.components
    )
    if cpu is not None:
        components += (Component(key="cpu", name="CPU", kind="cpu", model=cpu),)
    refused = "P2P=Disabled" in table.title
    links = tuple(
        dataclasses.replace(link, bytes_per_s=UNKNOWN, reverse_bytes_per_s=UNKNOWN, latency_s=UNKNOWN)
        for link in fragment.links
        if link.kind != "unknown"
    )
    if not links:
        links = tuple(_told_links(components, told, is_staged=refused))
    elif refused:
        links = tuple(dataclasses.replace(link, p2p="refused") for link in links)
    return dataclasses.replace(fragment, components=components, links=links, measurements=())


def _told_links(components: Sequence[Component], told: str, *, is_staged: bool) -> Iterator[Link]:
    """Yields the links that a description tells of: all of a switched board's NVLinks, or a path through the host."""
    devices = [c for c in components if c.kind in {"gpu", "npu"}]
    ports = ports_of(devices[0].model) if devices else None
    is_switched = re.search(r"\b(SXM|HGX|DGX|NVSwitch)", told) is not None
    for a, b in itertools.combinations(devices, 2):
        if is_staged:
            yield Link(a=a.key, b=b.key, kind="node", p2p="refused")
        elif is_switched and ports is not None and ports.peer_kind == "nvlink" and ports.peer_links:
            yield Link(a=a.key, b=b.key, kind="nvlink", count=ports.peer_links)


def _single_figures(name: str, table: Measurement, told: str) -> Iterator[Pair]:
    title = table.title.casefold()
    scale = bandwidth_unit(table)
    if scale is None or "nccl" in title or "all_reduce" in title:
        return  # a collective is no pair
    best = next((table.figures[key] for key in ("best", "best_median", "average") if key in table.figures), None)
    if not isinstance(best, (int, float)):
        return
    if "h2d" in title or "d2h" in title:
        model = model_in(told)
        device = Component(key="d", name="d", kind="gpu", model=model)
        yield Pair(name, "host to device", best * scale, estimate_host(device).bytes_per_s, model is not None)
    elif "rdma" in title or "_bw" in title:
        rate = next((rate for word, rate in LINE_RATES.items() if word in told), None)
        # perftest counts in MiB unless told otherwise.
        unit = 2**20 if "mb/s" in table.unit.casefold() else scale
        yield Pair(name, "NIC to NIC", best * unit, estimate_line(rate, is_rdma=True).bytes_per_s, rate is not None)


def contended_matrix(case: Contended) -> AffinityMatrix:
    """Returns what is known of one of the machines."""
    devices = tuple(Component(key=f"GPU{i}", name=f"GPU{i}", kind="gpu", index=i, model=CARD) for i in range(case.size))
    links = tuple(
        Link(a=f"GPU{i}", b=f"GPU{j}", kind=case.kind(i, j)) for i, j in itertools.combinations(range(case.size), 2)
    )
    cpu = Component(key="cpu", name="CPU", kind="cpu", model=case.cpu)
    return build({"n": Fragment(origin=case.name, format="published", components=(*devices, cpu), links=links)})


def contended_ratio(case: Contended) -> tuple[float, float, str]:
    """Returns the prediction in bytes/s, how far it is off as a ratio of at least 1, and what limits."""
    matrix = contended_matrix(case)
    found = matrix.achievable(matrix.all_pairs(), unknown="raise")
    return found.bytes_per_s, max(found.bytes_per_s / case.measured, case.measured / found.bytes_per_s), found.reason


def _print_pairs(pairs: Sequence[Pair]) -> None:
    sys.stdout.write(f"{'file':42} {'what':44} {'pairs':>5} {'measured':>9} {'predicted':>9} {'within 25 %':>11}\n")
    for (file, what), group in itertools.groupby(pairs, key=lambda pair: (pair.file, pair.what)):
        members = list(group)
        measured = statistics.median(pair.measured for pair in members) / 1e9
        known = [pair.predicted for pair in members if pair.predicted is not None]
        predicted = f"{statistics.median(known) / 1e9:9.1f}" if known else "        ?"
        near = sum(pair.error is not None and pair.error <= NEAR_RATIO for pair in members) / len(members)
        share = f"{near:10.0%}" if members[0].is_model_known else "model unknown"
        sys.stdout.write(f"{file[:42]:42} {what[:44]:44} {len(members):5} {measured:9.1f} {predicted} {share:>11}\n")


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--corpus", type=Path, default=Path(__file__).resolve().parents[2] / "shared/data/topology")
    options = parser.parse_args()
    reasons: dict[str, str] = {}
    pairs: list[Pair] = []
    if (options.corpus / "index.tsv").exists():
        pairs = list(pairs_of_corpus(options.corpus))
    else:
        reasons["within_25_percent_share"] = reasons["median_error_ratio"] = f"there is no corpus at {options.corpus}"
    _print_pairs(pairs)
    known = [pair for pair in pairs if pair.is_model_known]
    errors = [pair.error for pair in known if pair.error is not None]
    sys.stdout.write(f"\n{'all pairs at once':32} {'measured':>9} {'predicted':>9} {'ratio':>6}  limited by\n")
    worst = 0.0
    for case in CONTENDED:
        predicted, ratio, reason = contended_ratio(case)
        worst = max(worst, ratio)
        sys.stdout.write(f"{case.name:32} {case.measured / 1e9:9.1f} {predicted / 1e9:9.1f} {ratio:6.2f}  {reason}\n")
    finish(
        "topology_bandwidth",
        options.quick,
        {
            "within_25_percent_share": sum(e <= NEAR_RATIO for e in errors) / len(known) if known else None,
            "median_error_ratio": statistics.median(errors) if errors else None,
            "pairs_model_known": len(known),
            "pairs_model_unknown": len(pairs) - len(known),
            "contended_ratio_worst": worst,
        },
        reasons,
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
