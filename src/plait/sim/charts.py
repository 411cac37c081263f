"""The charts of a comparison of policies."""

import math
from collections.abc import Mapping, Sequence

from plait.monitor.drawing import Scale, duration, label, number, path, tag, tick_text, ticks, time_ticks
from plait.sim.outcome import Held, RunOutcome

WIDTH = 960
LEFT, RIGHT = 64, 24
PALETTE_SIZE = 8
MOST_POINTS = 600
ROW_PX = 26


def colour(index: int) -> str:
    """Returns the CSS colour of the run or type with this number."""
    return f"var(--c{index % PALETTE_SIZE})"


def cdf_chart(title: str, values: Mapping[str, Sequence[float]], *, is_log: bool, mark: float | None = None) -> str:
    """Cumulative shares of jobs by value, a line for each policy; ``mark`` is drawn as a dotted line."""
    everything = sorted(value for some in values.values() for value in some)
    if not everything:
        return tag("p", "No job finished.")
    low = max(everything[0], 1e-3) if is_log else 0.0
    high = max(everything[-1], low * 1.01, 1e-3)
    if not is_log:  # a few outliers must not squeeze the rest
        high = max(everything[min(len(everything) - 1, int(0.995 * len(everything)))], (mark or 0.0) * 1.2, 1e-3)
    x = (
        Scale(math.log10(low), math.log10(high), LEFT, WIDTH - RIGHT)
        if is_log
        else Scale(low, high, LEFT, WIDTH - RIGHT)
    )
    y = Scale(0.0, 1.0, 216.0, 18.0)
    parts = [_grid(y, percent=True), _value_axis(x, 216.0, is_log=is_log), label(LEFT, 12, title, "row-name")]
    if mark is not None:
        at = x(mark)
        parts.append(tag("line", x1=at, x2=at, y1=18.0, y2=216.0, class_="event"))
    for index, some in enumerate(values.values()):
        points = [
            (min(x(math.log10(max(value, low)) if is_log else value), float(WIDTH - RIGHT)), y(share))
            for value, share in _shares(sorted(some))
        ]
        parts.append(path(points, class_="loss", style=f"stroke:{colour(index)}"))
    return _svg(title, 250, *parts)


def _shares(values: Sequence[float]) -> list[tuple[float, float]]:
    step = max(1, len(values) // MOST_POINTS)
    kept = list(range(0, len(values), step))
    if values and kept[-1] != len(values) - 1:
        kept.append(len(values) - 1)
    return [(values[i], (i + 1) / len(values)) for i in kept]


def queue_chart(runs: Sequence[RunOutcome]) -> str:
    """Jobs in the system over time, a line for each policy."""
    end_s = max(run.ended_at_s for run in runs)
    levels = [_levels([(j.job.submitted_at_s, j.end_s if j.end_s is not None else end_s, 1) for j in run.jobs])
              for run in runs]  # fmt: skip
    high = max((level for steps in levels for _, level in steps), default=1)
    x, y = Scale(0.0, max(end_s, 1.0), LEFT, WIDTH - RIGHT), Scale(0.0, 1.06 * max(high, 1), 206.0, 18.0)
    parts = [_grid(y), _time_axis(x, 206.0, end_s), label(LEFT, 12, "Jobs submitted and not ended", "row-name")]
    for index, steps in enumerate(levels):
        parts.append(path(_stairs(steps, x, y), class_="loss", style=f"stroke:{colour(index)}"))
    return _svg("Jobs in the system", 240, *parts)


def use_chart(run: RunOutcome) -> str:
    """Devices in use over time by type, stacked, under the capacity of the cluster."""
    types, total = list(run.capacity), sum(run.capacity.values())
    x = Scale(0.0, max(run.ended_at_s, 1.0), LEFT, WIDTH - RIGHT)
    y = Scale(0.0, 1.06 * max(total, 1), 206.0, 18.0)
    edges = [run.ended_at_s * i / MOST_POINTS for i in range(MOST_POINTS + 1)]
    base = [0.0] * MOST_POINTS
    parts = [_grid(y), label(LEFT, 12, f"Devices in use: {run.policy}", "row-name")]
    for index, name in enumerate(types):
        mean = _means([held for held in run.timeline if held.accelerator_type == name], edges)
        lower = [(x(edges[i]), y(base[i])) for i in range(MOST_POINTS)]
        base = [below + here for below, here in zip(base, mean, strict=True)]
        upper = [(x(edges[i]), y(base[i])) for i in range(MOST_POINTS)]
        parts.append(
            path([*upper, *reversed(lower)], closed=True, class_="area", style=f"fill:{colour(index)}",
                 data_tip=f"{name}: {run.capacity[name]} devices")
        )  # fmt: skip
    parts.append(path([(x(0.0), y(total)), (x(run.ended_at_s), y(total))], class_="limit"))
    parts.append(_time_axis(x, 206.0, run.ended_at_s))
    legend = [
        tag("span", tag("i", class_="chip", style=f"background:{colour(i)}"), name) for i, name in enumerate(types)
    ]
    return tag("div", *legend, class_="legend") + _svg(f"Devices in use, {run.policy}", 240, *parts)


def _means(spans: Sequence[Held], edges: Sequence[float]) -> list[float]:
    """Returns the mean number of devices held in each stretch between edges, which are evenly apart."""
    width = edges[1] - edges[0] or 1.0
    held = [0.0] * (len(edges) - 1)
    for span in spans:
        first, last = int(span.start_s / width), min(int(span.end_s / width), len(held) - 1)
        for i in range(min(first, len(held) - 1), last + 1):
            overlap = min(span.end_s, edges[i + 1]) - max(span.start_s, edges[i])
            held[i] += max(0.0, overlap) / width * len(span.devices)
    return held


def gantt_chart(run: RunOutcome) -> str:
    """One row a node, one bar a job on its devices."""
    sizes: dict[str, int] = {}
    for held in run.timeline:
        sizes[held.node] = max(sizes.get(held.node, 0), max(held.devices) + 1)
    nodes = sorted(sizes)
    height = 20 + ROW_PX * len(nodes) + 34
    x, top = Scale(0.0, max(run.ended_at_s, 1.0), LEFT + 40, WIDTH - RIGHT), 14.0
    parts = [_time_axis(x, height - 34.0, run.ended_at_s)]
    row = {node: top + ROW_PX * index for index, node in enumerate(nodes)}
    parts += [label(LEFT + 30, row[node] + 15, node, "row-name", "end") for node in nodes]
    colours = {job: index for index, job in enumerate(dict.fromkeys(held.job_id for held in run.timeline))}
    kinds = {one.job.id: one.job.kind for one in run.jobs}
    for held in run.timeline:
        each = (ROW_PX - 4.0) / sizes[held.node]
        for device in held.devices:
            parts.append(
                tag(
                    "rect",
                    x=x(held.start_s),
                    y=row[held.node] + each * device,
                    width=max(0.5, x(held.end_s) - x(held.start_s)),
                    height=max(each - 0.3, 0.4),
                    class_="bar",
                    style=f"fill:{colour(colours[held.job_id])}",
                    data_tip=f"{held.job_id} {kinds.get(held.job_id, '')}\n{duration(held.start_s)} to "
                    f"{duration(held.end_s)}\n{len(held.devices)} of {held.accelerator_type} on {held.node}",
                )
            )
    return _svg(f"Who ran where, {run.policy}", height, *parts)


def _levels(spans: Sequence[tuple[float, float, int]]) -> list[tuple[float, int]]:
    changes: dict[float, int] = {}
    for start_s, end_s, amount in spans:
        changes[start_s] = changes.get(start_s, 0) + amount
        changes[end_s] = changes.get(end_s, 0) - amount
    level, found = 0, []
    for at_s in sorted(changes):
        level += changes[at_s]
        found.append((at_s, level))
    step = max(1, len(found) // (4 * MOST_POINTS))
    return found[::step] + found[-1:]


def _stairs(steps: Sequence[tuple[float, int]], x: Scale, y: Scale) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for at_s, level in steps:
        if points:
            points.append((x(at_s), points[-1][1]))
        points.append((x(at_s), y(level)))
    return points


def _svg(title: str, height: float, *parts: str) -> str:
    return tag("svg", *parts, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=title)


def _grid(y: Scale, *, percent: bool = False) -> str:
    values = ticks(y.low, y.high, 4)
    lines = []
    for value in values:
        at = y(value)
        lines.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        text = f"{100 * value:.0f} %" if percent else tick_text(value, values)
        lines.append(label(LEFT - 10, at + 4, text, anchor="end"))
    return "".join(lines)


def _value_axis(x: Scale, bottom: float, *, is_log: bool) -> str:
    parts = [tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis")]
    if is_log:
        powers = range(math.floor(x.low), math.ceil(x.high) + 1)
        places = [math.log10(factor * 10.0**power) for power in powers for factor in (1, 2, 5)]
        marks = [(place, number(10.0**place, 1)) for place in places if x.low <= place <= x.high]
    else:
        values = ticks(x.low, x.high, 8)
        marks = [(value, tick_text(value, values)) for value in values]
    for place, text in marks:
        parts.append(tag("line", x1=x(place), x2=x(place), y1=bottom, y2=bottom + 5, class_="axis"))
        parts.append(label(x(place), bottom + 19, text, anchor="middle"))
    return "".join(parts)


def _time_axis(x: Scale, bottom: float, end_s: float) -> str:
    parts = [tag("line", x1=x.start, x2=x.end, y1=bottom, y2=bottom, class_="axis")]
    for at_s in time_ticks(end_s):
        parts.append(tag("line", x1=x(at_s), x2=x(at_s), y1=bottom, y2=bottom + 5, class_="axis"))
        text = duration(at_s) if end_s < 4 * 86400 else f"{at_s / 86400:g} d"
        parts.append(label(x(at_s), bottom + 19, text, anchor="middle"))
    return "".join(parts)
