"""One self-contained HTML page that puts policies side by side: figures, distributions, use, who ran where."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from plait.monitor.drawing import number, tag
from plait.monitor.report import write_whole
from plait.sim.charts import cdf_chart, colour, gantt_chart, queue_chart, use_chart
from plait.sim.outcome import RunOutcome, figures

MOST_NODES = 64
MOST_BARS = 6000

LABELS: Mapping[str, tuple[str, str]] = {
    "jct_mean_h": ("Completion time, mean", "h"),
    "jct_median_h": ("Completion time, median", "h"),
    "jct_p99_h": ("Completion time, 99th percentile", "h"),
    "makespan_h": ("Makespan", "h"),
    "utilisation_ratio": ("Devices in use", "%"),
    "cost": ("Cost", ""),
    "rho_mean": ("Finish-time fairness rho, mean", ""),
    "rho_p95": ("rho, 95th percentile", ""),
    "rho_max": ("rho, worst", ""),
    "unfair_ratio": ("Jobs slower than on an equal share", "%"),
    "restarts_per_job": ("Restarts a job", ""),
    "unfinished_jobs": ("Jobs that did not finish", ""),
    "solve_ms_mean": ("Time of a decision, mean", "ms"),
    "solve_ms_max": ("Time of a decision, longest", "ms"),
}
"""What the figures are called, and their units."""

MORE_IS_BETTER = frozenset({"utilisation_ratio"})


def write_report(runs: Sequence[RunOutcome], out: Path, title: str, about: str) -> None:
    """Writes the page about these runs of one trace to ``out``, whole or not at all."""
    write_whole(out, render(runs, title, about))


def render(runs: Sequence[RunOutcome], title: str, about: str) -> str:
    """Returns the page as HTML text that needs no other file. The first run is compared with the others."""
    resources = files("plait.monitor")
    style = (resources / "report.css").read_text(encoding="utf-8")
    script = (resources / "report.js").read_text(encoding="utf-8")
    body = "".join(
        (
            tag("header", tag("h1", escape(title)), tag("p", escape(about))),
            _tiles(runs),
            _figures(runs),
            _distributions(runs),
            _over_time(runs),
            *(_gantt(run) for run in runs),
            tag("footer", "Written by Plait. Everything here is simulated; rho compares with an equal share of the "
                "cluster among as many jobs as were active on average."),
        )
    )  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Plait</title><style>{style}</style></head>"
        f'<body><main>{body}</main><div id="tip" hidden></div><script>{script}</script></body></html>\n'
    )


def told(name: str, value: float | None) -> str:
    """Returns a figure as people read it, with its unit."""
    if value is None:
        return "-"
    unit = LABELS[name][1]
    if unit == "%":
        return f"{100 * value:.1f} %"
    if name == "unfinished_jobs":
        return f"{value:.0f}"
    return f"{number(value)} {unit}".strip()


def ratio(name: str, value: float | None, other: float | None) -> str:
    """Returns how much more or less the first is, in per cent; empty where that says nothing."""
    if value is None or not other or name.startswith("solve"):
        return ""
    return f"{100 * (value / other - 1):+.1f} %"


def _tiles(runs: Sequence[RunOutcome]) -> str:
    first = figures(runs[0])
    other = figures(runs[1]) if len(runs) > 1 else None
    tiles = []
    for name in ("jct_mean_h", "makespan_h", "utilisation_ratio", "cost", "rho_max"):
        more = ""
        if other is not None:
            more = f"{ratio(name, first[name], other[name])} against {runs[1].policy}"
        tiles.append(
            tag("div", tag("b", escape(told(name, first[name]))), tag("span", escape(LABELS[name][0])),
                tag("small", escape(more)), class_="tile")
        )  # fmt: skip
    return tag("div", *tiles, class_="tiles")


def _figures(runs: Sequence[RunOutcome]) -> str:
    heads = [tag("th", "")]
    heads += [tag("th", _chip(index), escape(run.policy), class_="n") for index, run in enumerate(runs)]
    heads += [tag("th", escape(f"{runs[0].policy} against {run.policy}"), class_="n") for run in runs[1:]]
    all_figures = [figures(run) for run in runs]
    rows = []
    for name, (text, _) in LABELS.items():
        cells = [tag("td", escape(text))]
        cells += [tag("td", escape(told(name, found[name])), class_="n") for found in all_figures]
        for found in all_figures[1:]:
            cells.append(_versus(name, all_figures[0][name], found[name]))
        rows.append(tag("tr", *cells))
    table = tag("div", tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows)), class_="scroll")
    return _section("Figures", "The same trace, cluster, rates and costs for all. Solve times are CPU time.", table)


def _versus(name: str, value: float | None, other: float | None) -> str:
    text = ratio(name, value, other)
    if not text or value is None or other is None or value == other:
        return tag("td", text, class_="n")
    is_better = (value > other) == (name in MORE_IS_BETTER)
    return tag("td", tag("span", escape(text), class_=f"badge {'joined' if is_better else 'lost'}"), class_="n")


def _distributions(runs: Sequence[RunOutcome]) -> str:
    jct = {run.policy: [j.jct_s / 3600 for j in run.jobs if j.jct_s is not None] for run in runs}
    rho = {run.policy: [j.rho for j in run.jobs if j.rho is not None] for run in runs}
    return _section(
        "Distributions",
        "Share of jobs that took at most so long (logarithmic), and share with at most this rho; left of 1 a job was "
        "faster than on an equal share.",
        _legend(runs),
        cdf_chart("Completion time, hours", jct, is_log=True),
        cdf_chart("Finish-time fairness rho", rho, is_log=False, mark=1.0),
    )


def _over_time(runs: Sequence[RunOutcome]) -> str:
    parts = [_legend(runs), queue_chart(runs)]
    parts += [use_chart(run) for run in runs if run.timeline]
    return _section(
        "Over time",
        "Jobs that were submitted and had not ended, by policy; then devices in use by type, under all there are.",
        *parts,
    )


def _gantt(run: RunOutcome) -> str:
    nodes = {held.node for held in run.timeline}
    heading = f"Who ran where: {run.policy}"
    if not run.timeline:
        return _section(heading, "Not kept for a trace of this length.")
    if len(nodes) > MOST_NODES or len(run.timeline) > MOST_BARS:
        return _section(heading, f"{len(nodes)} nodes and {len(run.timeline)} spans are too many to draw.")
    return _section(
        heading, "One row a node; a bar's height is the devices that it takes. Point at a bar to see the job.",
        gantt_chart(run),
    )  # fmt: skip


def _legend(runs: Sequence[RunOutcome]) -> str:
    chips = [tag("span", _chip(index), escape(run.policy)) for index, run in enumerate(runs)]
    return tag("div", *chips, class_="legend")


def _chip(index: int) -> str:
    return tag("i", class_="chip", style=f"background:{colour(index)}")


def _section(heading: str, about: str, *parts: str) -> str:
    return tag("section", tag("h2", escape(heading)), tag("p", escape(about)), *parts)
