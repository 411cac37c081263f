"""``plait simulate``: what a policy would do with a trace on a cluster, on a virtual clock."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.failures import OK
from plait.cli.options import JsonOption
from plait.cli.output import counted, print_json, print_table, say, warn

if TYPE_CHECKING:
    from plait.sim.experiment import Experiment
    from plait.sim.outcome import RunOutcome

TraceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE",
        help="A trace (Gavel, Shockwave, Pollux, Sia, Philly, Helios, Acme, Alibaba 2020 and 2023, Tiresias, "
        "ElasticFlow, Muri), or the state directory of a recorded run.",
    ),
]
ClusterText = Annotated[
    str,
    typer.Option(
        "--cluster", metavar="CLUSTER", help="A cluster file, a CSV list of nodes, or TYPE:NODESxDEVICES,...",
        show_default=False,
    ),
]  # fmt: skip


def simulate(
    trace: TraceArgument,
    *,
    cluster: ClusterText = "",
    policy: Annotated[str, typer.Option(help="NAME, or NAME:GOAL=WEIGHT,...")] = "fifo_backfill",
    against: Annotated[
        list[str] | None, typer.Option(metavar="POLICY", help="Policies to compare with; may be repeated.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Throughput table of the models that the trace names.")
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Profiles of the applications that the trace names.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Type on which recorded durations hold; the most common one.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(metavar="TYPE=PRICE", help="Price of a device-hour; may be repeated.")
    ] = None,
    engine: Annotated[str, typer.Option(help="live: the scheduler itself; rounds: the neutral setting.")] = "live",
    round_s: Annotated[float, typer.Option("--round", help="Seconds between rounds.")] = 60.0,
    restart_s: Annotated[float, typer.Option("--restart", help="Seconds that a start costs.")] = 45.0,
    checkpoint_s: Annotated[
        float, typer.Option("--checkpoint", help="Seconds between checkpoints; 0: a stop loses nothing.")
    ] = 0.0,
    node_mtbf_h: Annotated[
        float | None, typer.Option("--node-mtbf", help="Mean hours between failures of a node.")
    ] = None,
    repair_s: Annotated[float, typer.Option("--repair", help="Seconds that a failed node stays away.")] = 1800.0,
    rate_error: Annotated[float, typer.Option(help="Log. standard deviation of the estimated rates.")] = 0.0,
    work_error: Annotated[float, typer.Option(help="The same for remaining work.")] = 0.0,
    unknown_work: Annotated[bool, typer.Option(help="Policies are not told the remaining work.")] = False,
    elastic: Annotated[bool, typer.Option(help="Jobs may be resized where the trace allows it.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Only the first so many jobs.")] = None,
    time_scale: Annotated[float, typer.Option(help="Factor on all times of the trace.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of failures and errors.")] = 0,
    html: Annotated[Path | None, typer.Option(metavar="OUT.HTML", help="Write a report.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Play a trace on a cluster that exists on paper, with one or more policies.

    The live engine is the scheduler that `plait serve` runs, fed by a virtual clock. The same trace and seed give the
    same schedule.
    """
    from dataclasses import replace

    from plait.sim.beliefs import Beliefs
    from plait.sim.recorded import is_recorded

    if is_recorded(trace):
        return _reproduce(trace, as_json=as_json)
    beliefs = Beliefs(rate_error=rate_error, work_error=work_error, knows_remaining=not unknown_work, seed=seed)
    experiment, about, notes = _experiment(
        trace,
        cluster_text=cluster,
        table=table,
        profiles=profiles,
        reference=reference,
        prices=price or [],
        engine=engine,
        elastic=elastic,
        most=jobs,
        time_scale=time_scale,
    )
    experiment = replace(
        experiment, round_s=round_s, restart_s=restart_s, checkpoint_s=checkpoint_s, repair_s=repair_s, seed=seed,
        node_mtbf_s=node_mtbf_h * 3600 if node_mtbf_h is not None else None, beliefs=beliefs,
    )  # fmt: skip
    runs = _runs(experiment, [policy, *(against or [])])
    if html is not None:
        from plait.sim.report import write_report

        write_report(runs, html, title=f"{trace.name}: {' against '.join(run.policy for run in runs)}", about=about)
    _tell(runs, about, notes, html, as_json=as_json)
    return OK


def _experiment(
    trace: Path, *, cluster_text: str, table: Path | None, profiles: Path | None, reference: str | None,
    prices: Sequence[str], engine: str, elastic: bool, most: int | None, time_scale: float,
) -> "tuple[Experiment, str, list[str]]":  # fmt: skip
    from plait.sim.clusters import read_cluster, read_prices
    from plait.sim.experiment import Experiment, fitting
    from plait.sim.tables import read_table
    from plait.sim.traces.reading import Reading, read_trace

    if not cluster_text:
        raise typer.BadParameter("name the cluster with --cluster, such as --cluster V100:3x4,P100:3x4")
    if engine not in {"live", "rounds"}:
        raise typer.BadParameter(f"--engine is live or rounds, not {engine!r}")
    cluster = read_cluster(cluster_text, read_prices(prices))
    beside = trace.parent / "throughputs_isolated.csv"
    found = table or (beside if beside.exists() else None)
    reading = Reading(
        table=read_table(found) if found is not None else None,
        speeds=cluster.speeds(reference),
        profiles=profiles,
        is_elastic=elastic,
        time_scale=time_scale,
    )
    form, all_jobs = read_trace(trace, reading)
    kept, misfits = fitting(all_jobs[:most], cluster)
    notes = [f"left out {number}: {reason}" for reason, number in sorted(reading.left_out.items())]
    notes += [f"left out {counted(misfits, 'job')} that the cluster could not even hold when idle"] if misfits else []
    notes += list(cluster.notes)
    devices = ", ".join(f"{number} {name}" for name, number in cluster.capacity.items())
    about = f"{counted(len(kept), 'job')} of {trace.name} ({form}) on {devices}"
    return Experiment(jobs=kept, cluster=cluster, engine=engine), about, notes  # type: ignore[arg-type]


def _runs(experiment: "Experiment", policies: Sequence[str]) -> "list[RunOutcome]":
    from plait.schedule.policies import policy as find
    from plait.sim.experiment import parse_policy, run

    for text in policies:
        find(*parse_policy(text))  # a wrong name is told before anything is simulated
    with _solvers_on_stderr():
        return [run(experiment, text) for text in policies]


@contextmanager
def _solvers_on_stderr() -> Iterator[None]:
    """Sends what native libraries print to stderr: the solver writes to the process's stdout, where results go."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _tell(runs: "Sequence[RunOutcome]", about: str, notes: Sequence[str], html: Path | None, *, as_json: bool) -> None:
    from plait.sim.outcome import figures
    from plait.sim.report import LABELS, ratio, told

    all_figures = [figures(run) for run in runs]
    if as_json:
        print_json(
            {
                "about": about,
                "notes": list(notes),
                "policies": {run.policy: found for run, found in zip(runs, all_figures, strict=True)},
            }
        )
        return
    for note in notes:
        warn(note)
    columns = ["", *(f">{run.policy}" for run in runs), *(f">against {run.policy}" for run in runs[1:])]
    rows = [
        (
            text,
            *(told(name, found[name]) for found in all_figures),
            *(ratio(name, all_figures[0][name], found[name]) for found in all_figures[1:]),
        )
        for name, (text, _) in LABELS.items()
    ]
    print_table(columns, rows, title=about)
    if html is not None:
        say(f"report: {html}")


def _reproduce(where: Path, *, as_json: bool) -> int:
    from plait.cli.failures import FAILED
    from plait.sim.recorded import read_records, reproduce

    answer = reproduce(read_records(where))
    if as_json:
        print_json({"events": answer.num_events, "commands": answer.num_commands, "differences": answer.differences})
    else:
        say(
            f"{counted(answer.num_events, 'event')} and {counted(answer.num_commands, 'command')} of the recorded run: "
            + ("the simulation has the same in the same order" if not answer.differences else "the simulation differs")
        )
        for line in answer.differences:
            say(f"  {line}")
    return FAILED if answer.differences else OK
