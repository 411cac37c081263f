"""``plait topology``: how devices are wired, in bytes a second, with the source of every figure."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.failures import OK
from plait.cli.options import JsonOption
from plait.cli.output import print_json, say

if TYPE_CHECKING:
    from plait.hardware.affinity import AffinityMatrix, PairFigure
    from plait.hardware.topology import Fragment

FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NODE=]FILE...",
        help="What tools printed or captures of /sys; this machine unless given. Several files of one node are merged.",
        show_default=False,
    ),
]
FromOption = Annotated[
    Path | None,
    typer.Option("--from", metavar="CAPTURE", help="Directory or archive of a captured machine.", show_default=False),
]
ModelOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Model of accelerators that the files leave unnamed.", show_default=False),
]
CpuOption = Annotated[
    str | None,
    typer.Option(
        "--cpu", metavar="NAME", help="Processor where no file names it, as 'EPYC 9575F'.", show_default=False
    ),
]
MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Measure this machine's links; results are kept and used from then on.")
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="With --measure: measure again what was kept from before.")]
BudgetOption = Annotated[float, typer.Option("--seconds", metavar="S", help="How long --measure may take.", min=1.0)]
PeerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="NAME=HOST:PORT",
        help="With --measure: also to this node, which runs `plait topology --answer PORT`.",
        show_default=False,
    ),
]
AnswerOption = Annotated[
    str | None,
    typer.Option("--answer", metavar="[HOST:]PORT", help="Answer one node's --peer, then exit.", show_default=False),
]
SvgOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a picture.", show_default=False)]
NcclOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a topology file for NCCL_TOPO_FILE.", show_default=False),
]


def topology(
    files: FilesArgument = None,
    *,
    source: FromOption = None,
    model: ModelOption = None,
    cpu: CpuOption = None,
    measure: MeasureOption = False,
    fresh: FreshOption = False,
    seconds: BudgetOption = 20.0,
    peer: PeerOption = None,
    answer: AnswerOption = None,
    svg: SvgOption = None,
    nccl: NcclOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show how devices, NICs and nodes are wired: bandwidth of every pair, what pairs share, and what is wrong."""
    from plait.hardware.affinity import build
    from plait.hardware.findings import findings
    from plait.hardware.gather import from_capture, from_files, this_host, with_hints

    if answer is not None:
        return _answer(answer)
    if (measure or peer) and (files or source):
        raise typer.BadParameter("--measure measures this machine; it takes no files")
    if files and source:
        raise typer.BadParameter("give files or --from, not both")
    is_live = not files and source is None
    nodes = from_files(files) if files else from_capture(source) if source is not None else this_host()
    nodes = with_hints(nodes, model, cpu)
    notes: tuple[str, ...] = ()
    measured: tuple[PairFigure, ...] = ()
    if is_live:
        measured, notes = _figures_of_this_host(nodes, Wanted(measure=measure, fresh=fresh, seconds=seconds))
    for word in peer or []:
        nodes, measured = _with_peer(nodes, measured, word, seconds)
    matrix = build(nodes, measurements=measured)
    warnings = findings(nodes, matrix, os.environ if is_live else {})
    _write_files(nodes, matrix, svg, nccl)
    if as_json:
        from plait.cli.topology_view import document

        print_json(document(nodes, matrix, warnings, notes))
    else:
        from plait.cli.topology_view import show

        show(nodes, matrix, warnings, notes)
    return OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to measure: everything or only what no longer holds, and for how long."""

    measure: bool
    fresh: bool
    seconds: float


def _figures_of_this_host(
    nodes: "dict[str, Fragment]", wanted: Wanted
) -> "tuple[tuple[PairFigure, ...], tuple[str, ...]]":
    """Returns measured figures: new ones if asked for, else those that were kept and still hold."""
    from plait.hardware.affinity import build
    from plait.hardware.probes.results import cache_directory, driver_versions, kept, machine_hash, verdict
    from plait.hardware.probes.session import measure, pair_figures

    (name, fragment) = next(iter(nodes.items()))
    directory = cache_directory(os.environ)
    if wanted.measure:
        with _progress() as progress:
            done = measure(
                name,
                fragment,
                build(nodes),
                budget_s=wanted.seconds,
                directory=directory,
                progress=progress,
                is_forced=wanted.fresh,
            )
        where = (f"kept in {done.path}",) if done.path else ()
        return pair_figures(done.results), (*done.notes, *where)
    machine = machine_hash(fragment)
    before = kept(machine, directory)
    if before is None:
        return (), ("nothing is measured on this machine yet: --measure replaces estimates by figures",)
    holds = verdict(before, machine=machine, drivers=driver_versions(fragment), now_s=time.time())
    if holds.is_stale:
        return (), (f"figures from before are not used: {holds.reason}; --measure makes new ones",)
    return pair_figures(before), (holds.reason,)


@contextlib.contextmanager
def _progress() -> "Iterator[Callable[[int, int, str], None]]":
    """Yields what shows progress: a bar on a terminal's stderr, nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("measuring"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=console, transient=True) as bar:
        shown = bar.add_task("", total=1)
        yield lambda done, total, what: bar.update(shown, completed=done, total=total, description=what)


def _with_peer(
    nodes: "dict[str, Fragment]", measured: "tuple[PairFigure, ...]", word: str, seconds: float
) -> "tuple[dict[str, Fragment], tuple[PairFigure, ...]]":
    """Measures to another node and adds it, with nothing known of it but the link."""
    from plait.hardware.affinity import PairFigure
    from plait.hardware.probes.network import measure_peer
    from plait.hardware.topology import Fragment
    from plait.hardware.values import Source, Value

    name, _, address = word.partition("=")
    host, _, port = address.rpartition(":")
    if not (name and host and port.isdecimal()):
        raise typer.BadParameter(f"--peer {word!r} is not NAME=HOST:PORT")
    if name in nodes:
        raise typer.BadParameter(f"--peer {word!r}: this node itself is called {name!r}")
    found = measure_peer(host.strip("[]"), int(port), seconds=seconds, is_last=True)
    here = next(iter(nodes))
    detail = f"TCP to {address}, {found.streams} streams at once"
    latency = Value(found.latency_s, Source.MEASURED, detail)

    def figure(a: str, b: str, rate: float) -> PairFigure:
        value = Value(rate, Source.MEASURED, detail, found.relative_error)
        return PairFigure(a=a, b=b, bytes_per_s=value, latency_s=latency)

    both = (figure(here, name, found.out_bytes_per_s), figure(name, here, found.back_bytes_per_s))
    return {**nodes, name: Fragment(origin=address, format="peer")}, (*measured, *both)


def _answer(where: str) -> int:
    """Answers the measurements of one other node, then ends."""
    from plait.hardware.probes.network import Answerer

    host, _, port = where.rpartition(":")
    if not port.isdecimal():
        raise typer.BadParameter(f"--answer {where!r} is not [HOST:]PORT")
    answerer = Answerer(host.strip("[]") or "127.0.0.1", int(port))
    shown_host, shown_port = answerer.address
    say(f"answering measurements on {shown_host}:{shown_port} until one node has measured")
    try:
        answerer.serve()
    finally:
        answerer.close()
    return OK


def _write_files(nodes: "dict[str, Fragment]", matrix: "AffinityMatrix", svg: Path | None, nccl: Path | None) -> None:
    if svg is not None:
        from plait.hardware.picture import render

        svg.write_text(render(nodes, matrix), encoding="utf-8")
    if nccl is not None:
        from plait.hardware.importers.nccl_write import write_nccl_xml

        if len(nodes) > 1:
            raise typer.BadParameter("--nccl writes one node's file; give the files of one node")
        nccl.write_bytes(write_nccl_xml(next(iter(nodes.values()))))
