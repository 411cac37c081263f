"""The four charts of a run report, one above the other on one axis of time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from plait.monitor.drawing import Scale, duration, label, number, path, percent, tag, tick_text, ticks, time_ticks
from plait.monitor.summary import RunSummary, Span, Stretch

WIDTH = 960
LEFT, RIGHT = 64, 24
PALETTE_SIZE = 8
_ROW_HEIGHT = 30


@dataclass(frozen=True, slots=True)
class Frame:
    """The place of one chart: its whole height, the plot's top and bottom, and the scales of both axes."""

    height: float
    top: float
    bottom: float
    x: Scale
    y: Scale


def colours(summary: RunSummary) -> Mapping[str, str]:
    """Returns the CSS colour of each member: members keep their colour through the whole page."""
    return {device.member: f"var(--c{index % PALETTE_SIZE})" for index, device in enumerate(summary.devices)}


def loss_chart(summary: RunSummary) -> str:
    """Loss by time, each step faint and their average strong; the upper axis counts steps."""
    losses = _thinned(summary.losses, 900)
    values = [loss for _, _, loss in losses]
    low, high = min(values), max(values)
    pad = 0.08 * (high - low) or 0.5
    frame = _frame(summary, height=270, top=46, low=max(0.0, low - pad) if low >= 0 else low - pad, high=high + pad)
    (first_s, _, first), (last_s, _, last) = losses[0], losses[-1]
    return _chart(
        "Loss over time",
        frame,
        _grid(frame),
        _time_axis(frame, summary.duration_s),
        _step_axis(frame, summary.stretches),
        _event_lines(frame, summary, named=True),
        path([(frame.x(at_s), frame.y(loss)) for at_s, _, loss in losses], class_="loss-raw"),
        path([(frame.x(at_s), frame.y(loss)) for at_s, loss in _averaged(losses)], class_="loss"),
        tag("circle", cx=frame.x(first_s), cy=frame.y(first), r=3.5, class_="dot"),
        label(frame.x(first_s) + 9, frame.y(first) + 4, number(first), "value"),
        tag("circle", cx=frame.x(last_s), cy=frame.y(last), r=3.5, class_="dot"),
        label(frame.x(last_s), frame.y(last) - 9, number(last), "value", "end"),
        _hover(frame, summary.stretches, _loss_tip),
    )


def throughput_chart(summary: RunSummary) -> str:
    """Samples per second of each device, stacked, under the sum of what the devices could do alone."""
    stretches = summary.stretches
    sums = sorted(part.sum_of_speeds for part in stretches)
    # A single stalled clock reading must not squeeze everything else: the odd peak is cut off at the frame.
    high = max(*(part.total_samples_per_s for part in stretches), sums[int(0.98 * (len(sums) - 1))], 1e-9)
    frame = _frame(summary, height=270, top=22, low=0.0, high=1.06 * high)
    limit = [point for part in stretches for point in _flat(frame, part, min(part.sum_of_speeds, 1.06 * high))]
    return _chart(
        "Samples per second by device",
        frame,
        _grid(frame),
        _areas(frame, summary, lambda part: part.samples_per_s),
        path(limit, class_="limit"),
        _time_axis(frame, summary.duration_s),
        _event_lines(frame, summary),
        _hover(frame, stretches, _throughput_tip),
    )


def membership_chart(summary: RunSummary) -> str:
    """One row a device: when it was in the group, in which generation, and how it came and went."""
    rows = {device.member: index for index, device in enumerate(summary.devices)}
    colour = colours(summary)
    height = 20 + _ROW_HEIGHT * len(rows) + 34
    frame = _frame(summary, height=height, top=14, low=0.0, high=1.0)
    middle = {name: frame.top + _ROW_HEIGHT * (index + 0.5) for name, index in rows.items()}
    names = [
        label(LEFT - 10, middle[device.member] + 4, device.member, "row-name", "end") for device in summary.devices
    ]
    bars = [_bar(frame, span, middle[span.member], colour[span.member]) for span in summary.spans]
    marks = []
    for device in summary.devices:
        if device.joined_at_s is not None:
            marks.append(_joined_mark(frame.x(device.first_s), middle[device.member]))
        if device.lost_at_s is not None:
            marks.append(_lost_mark(frame.x(device.last_s), middle[device.member]))
    return _chart(
        "Who was in the group",
        frame,
        _time_axis(frame, summary.duration_s),
        _event_lines(frame, summary),
        *names,
        *bars,
        *marks,
    )


def split_chart(summary: RunSummary) -> str:
    """Micro-batches of a step by device, stacked; a triangle marks each decision and tells its reason."""
    totals = [sum(count for _, count in part.micro_batches) for part in summary.stretches]
    frame = _frame(summary, height=230, top=26, low=0.0, high=max(*totals, 1.0) if totals else 1.0)
    decisions = [
        tag(
            "path",
            d=f"M{frame.x(event.at_s) - 5:.1f} {frame.top - 12:.1f}h10l-5 9z",
            class_="decision",
            data_tip=f"{duration(event.at_s, 1)} · step {event.step}\n{event.what}\n{event.reason}",
        )
        for event in summary.events
        if event.kind == "split"
    ]
    return _chart(
        "Micro-batches by device",
        frame,
        _grid(frame),
        _areas(frame, summary, lambda part: part.micro_batches),
        _time_axis(frame, summary.duration_s),
        _event_lines(frame, summary),
        _hover(frame, summary.stretches, _split_tip),
        *decisions,
    )


def _frame(summary: RunSummary, *, height: float, top: float, low: float, high: float) -> Frame:
    bottom = height - 34
    x = Scale(0.0, max(summary.duration_s, 1e-9), LEFT, WIDTH - RIGHT)
    return Frame(height=height, top=top, bottom=bottom, x=x, y=Scale(low, high, bottom, top))


def _chart(title: str, frame: Frame, *parts: str) -> str:
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {WIDTH} {frame.height:g}",
        role="img",
        aria_label=title,
    )


def _grid(frame: Frame) -> str:
    lines = []
    values = ticks(frame.y.low, frame.y.high, 5)
    for value in values:
        y = frame.y(value)
        lines.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        lines.append(label(LEFT - 10, y + 4, tick_text(value, values), anchor="end"))
    return "".join(lines)


def _time_axis(frame: Frame, duration_s: float) -> str:
    parts = [tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=frame.bottom, y2=frame.bottom, class_="axis")]
    places = 1 if duration_s < 8 else 0
    for at_s in time_ticks(duration_s):
        x = frame.x(at_s)
        parts.append(tag("line", x1=x, x2=x, y1=frame.bottom, y2=frame.bottom + 5, class_="axis"))
        parts.append(label(x, frame.bottom + 19, duration(at_s, places), anchor="middle"))
    return "".join(parts)


def _step_axis(frame: Frame, stretches: Sequence[Stretch]) -> str:
    first, last = stretches[0].first_step, stretches[-1].last_step
    parts = [tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=frame.top, y2=frame.top, class_="grid")]
    taken_to = LEFT - 40.0
    for step in ticks(first, last, 8):
        at_s = next((s.end_s for s in stretches if s.last_step >= step), None)
        if at_s is None or step != int(step):
            continue
        x = frame.x(at_s)
        if x - taken_to < 40:
            continue
        taken_to = x
        parts.append(tag("line", x1=x, x2=x, y1=frame.top - 4, y2=frame.top, class_="axis"))
        parts.append(label(x, frame.top - 9, f"{int(step):,}", anchor="middle"))
    parts.append(label(LEFT - 10, frame.top - 9, "step", anchor="end"))
    return "".join(parts)


def _event_lines(frame: Frame, summary: RunSummary, *, named: bool = False) -> str:
    parts = []
    for event in summary.events:
        if event.kind not in {"lost", "joined"}:
            continue
        x = frame.x(event.at_s)
        parts.append(tag("line", x1=x, x2=x, y1=frame.top, y2=frame.bottom, class_=f"event {event.kind}"))
        if named:
            near_the_end = x > WIDTH - RIGHT - 90
            anchor, offset = ("end", -6) if near_the_end else ("start", 6)
            what = event.what.partition(":")[0]
            parts.append(label(x + offset, frame.top + 14, what, f"event-name {event.kind}", anchor))
    return "".join(parts)


def _areas(frame: Frame, summary: RunSummary, values: Callable[[Stretch], tuple[tuple[str, float], ...]]) -> str:
    colour = colours(summary)
    base = [0.0] * len(summary.stretches)
    parts = []
    for device in summary.devices:
        upper: list[tuple[float, float]] = []
        lower: list[tuple[float, float]] = []
        for index, stretch in enumerate(summary.stretches):
            value = dict(values(stretch)).get(device.member, 0.0)
            lower += _flat(frame, stretch, base[index])
            base[index] += value
            upper += _flat(frame, stretch, base[index])
        parts.append(
            path([*upper, *reversed(lower)], closed=True, class_="area", style=f"fill:{colour[device.member]}")
        )
    return "".join(parts)


def _flat(frame: Frame, stretch: Stretch, value: float) -> list[tuple[float, float]]:
    return [(frame.x(stretch.start_s), frame.y(value)), (frame.x(stretch.end_s), frame.y(value))]


def _hover(frame: Frame, stretches: Iterable[Stretch], tip: Callable[[Stretch], str]) -> str:
    return "".join(
        tag(
            "rect",
            x=frame.x(stretch.start_s),
            y=frame.top,
            width=max(0.5, frame.x(stretch.end_s) - frame.x(stretch.start_s)),
            height=frame.bottom - frame.top,
            class_="hit",
            data_tip=f"{_when(stretch)}\n{tip(stretch)}",
        )
        for stretch in stretches
    )


def _when(stretch: Stretch) -> str:
    steps = f"step {stretch.first_step:,}"
    if stretch.last_step != stretch.first_step:
        steps = f"steps {stretch.first_step:,} to {stretch.last_step:,}"
    return f"{duration(stretch.end_s, 1)} · {steps} · generation {stretch.generation}"


def _loss_tip(stretch: Stretch) -> str:
    return "loss not recorded" if stretch.loss is None else f"loss {stretch.loss:.4f}"


def _throughput_tip(stretch: Stretch) -> str:
    rates = [f"{name}  {number(rate)} samples/s" for name, rate in stretch.samples_per_s]
    total, limit = stretch.total_samples_per_s, stretch.sum_of_speeds
    share = f" ({percent(total / limit)})" if limit > 0 else ""
    return "\n".join([*rates, f"together {number(total)} of {number(limit)}{share}"])


def _split_tip(stretch: Stretch) -> str:
    return "\n".join(f"{name}  {number(count)} micro-batches" for name, count in stretch.micro_batches)


def _bar(frame: Frame, span: Span, middle: float, colour: str) -> str:
    start, end = frame.x(span.start_s), frame.x(span.end_s)
    width = max(2.0, end - start - 1.5)
    text = f"generation {span.generation}"
    tip = f"{span.member} in {text}\n{duration(span.start_s, 1)} to {duration(span.end_s, 1)}"
    parts = [
        tag(
            "rect", x=start, y=middle - 9, width=width, height=18.0, rx=4, class_="bar", style=f"fill:{colour}",
            data_tip=tip,
        )
    ]  # fmt: skip
    if width > 6.2 * len(text) + 12:
        parts.append(label(start + 8, middle + 4, text, "bar-text"))
    elif width > 6.2 * len(span.generation) + 10:
        parts.append(label(start + 6, middle + 4, span.generation, "bar-text"))
    return "".join(parts)


def _lost_mark(x: float, y: float) -> str:
    return tag("path", d=f"M{x + 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10", class_="mark lost")


def _joined_mark(x: float, y: float) -> str:
    return tag("path", d=f"M{x - 13:.1f} {y:.1f}h10m-4 -4l4 4l-4 4", class_="mark joined")


def _averaged(losses: Sequence[tuple[float, int, float]]) -> list[tuple[float, float]]:
    """Returns the centred running mean, over a window that shrinks evenly towards both ends."""
    reach = len(losses) // 60
    points = []
    for index, (at_s, _, _) in enumerate(losses):
        near = min(reach, index, len(losses) - 1 - index)
        window = [loss for _, _, loss in losses[index - near : index + near + 1]]
        points.append((at_s, sum(window) / len(window)))
    return points


def _thinned(rows: tuple[tuple[float, int, float], ...], most: int) -> tuple[tuple[float, int, float], ...]:
    """Keeps every n-th row and the last, so that a long run draws as fast as a short one."""
    size = -(-len(rows) // most)
    return rows if size <= 1 else (*rows[:-1:size], rows[-1])
