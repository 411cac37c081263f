"""One self-contained HTML page about a run: loss, speed, membership, split, devices and events, with reasons."""

import os
import tempfile
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path

from plait.errors import PlaitError
from plait.monitor.charts import colours, loss_chart, membership_chart, split_chart, throughput_chart
from plait.monitor.drawing import duration, number, percent, tag
from plait.monitor.summary import DeviceSummary, RunEvent, RunSummary, summarise
from plait.monitor.timeline import read_timeline


def write_report(run_dir: Path, out: Path, title: str | None = None) -> None:
    """Writes the page about the run in ``run_dir`` to ``out``, whole or not at all.

    Without a title the page is named after the directory, or after the job's where that is just ``run``.

    Raises:
        PlaitError: The directory holds no timeline, or no step was committed yet.
    """
    timeline = read_timeline(run_dir)
    if not timeline.steps:
        raise PlaitError(f"the timeline under {run_dir} holds no committed step yet")
    place = run_dir.resolve()
    name = place.parent.name if place.name == "run" else place.name
    write_whole(out, render(summarise(timeline), title=title or name))


def render(summary: RunSummary, title: str) -> str:
    """Returns the page as HTML text that needs no other file."""
    resources = files("plait.monitor")
    style = (resources / "report.css").read_text(encoding="utf-8")
    script = (resources / "report.js").read_text(encoding="utf-8")
    body = "".join(
        (
            _header(summary, title),
            _tiles(summary),
            _loss_section(summary),
            _throughput_section(summary),
            _membership_section(summary),
            _split_section(summary),
            _device_section(summary),
            _event_section(summary),
            _footer(summary),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · Plait</title><style>{style}</style></head>"
        f'<body><main>{body}</main><div id="tip" hidden></div><script>{script}</script></body></html>\n'
    )


def write_whole(out: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        Path(name).replace(out)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _header(summary: RunSummary, title: str) -> str:
    started = datetime.fromtimestamp(summary.started_at_s, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    types = ", ".join(dict.fromkeys(device.accelerator_type for device in summary.devices))
    about = f"Started {started}, ran {duration(summary.duration_s, 1)} on {types}"
    return tag("header", tag("h1", escape(title)), tag("p", escape(about)))


def _tiles(summary: RunSummary) -> str:
    tiles = []
    if summary.losses:
        tiles.append(
            _tile(f"{number(summary.losses[0][2])} → {number(summary.losses[-1][2])}", "loss", "first to last step")
        )
    missing = f"{summary.missing_steps} steps missing" if summary.missing_steps else "none missing"
    tiles.append(_tile(f"{summary.num_steps:,}", "steps", f"{missing}, {summary.num_samples:,} samples"))
    tiles.append(_tile(number(summary.samples_per_s), "samples per second", "over the whole run"))
    tiles.append(
        _tile(percent(summary.share_of_speed_ratio), "of the devices' speeds", "committed ÷ sum of what each can do")
    )
    gap_s = summary.longest_gap_s
    gap = "no gap" if gap_s is None else f"longest gap {duration(gap_s, 2)}"
    tiles.append(_tile(str(summary.num_lost), f"device{'' if summary.num_lost == 1 else 's'} lost", gap))
    return tag("div", *tiles, class_="tiles")


def _tile(value: str, what: str, more: str) -> str:
    return tag("div", tag("b", escape(value)), tag("span", escape(what)), tag("small", escape(more)), class_="tile")


def _section(heading: str, about: str, *parts: str) -> str:
    return tag("section", tag("h2", escape(heading)), tag("p", escape(about)), *parts)


def _loss_section(summary: RunSummary) -> str:
    if not summary.losses:
        return _section("Loss", "The script recorded no loss: call run.record(loss=loss) in its loop.")
    return _section(
        "Loss",
        "Mean over all samples of a step: each step faint, their running average strong. The dotted lines are losses "
        "and joins of devices.",
        loss_chart(summary),
    )


def _throughput_section(summary: RunSummary) -> str:
    limit = tag("span", tag("i", class_="dash"), "sum of the devices' speeds")
    return _section(
        "Samples per second",
        "What each device added to the committed steps, stacked, against what the devices together would do if none "
        "ever waited.",
        _legend(summary, limit),
        throughput_chart(summary),
    )


def _membership_section(summary: RunSummary) -> str:
    return _section(
        "Membership",
        "Who was in the group, by generation. A cross marks a loss, an arrow a join.",
        membership_chart(summary),
    )


def _split_section(summary: RunSummary) -> str:
    return _section(
        "Split of a step",
        "Micro-batches that each device computes in a step. A triangle marks a new split; its reason is in the tip and "
        "in the list of events.",
        _legend(summary),
        split_chart(summary),
    )


def _legend(summary: RunSummary, *more: str) -> str:
    colour = colours(summary)
    chips = [
        tag("span", _chip(colour[device.member]), escape(f"{device.member} {device.accelerator_type}"))
        for device in summary.devices
    ]
    return tag("div", *chips, *more, class_="legend")


def _chip(colour: str) -> str:
    return tag("i", class_="chip", style=f"background:{colour}")


def _device_section(summary: RunSummary) -> str:
    colour = colours(summary)
    heads = (
        ("Device", ""), ("Type", ""), ("In the group", ""), ("Steps", "n"), ("Samples", "n"), ("Share of samples", "n"),
        ("Speed, samples/s", "n"), ("Utilisation", "n"),
    )  # fmt: skip
    rows = [tag("tr", *_device_cells(device, colour[device.member])) for device in summary.devices]
    return _section(
        "Devices",
        "Speed counts a device's own compute time only; utilisation is that time over the time it was in the group.",
        _table(heads, rows),
    )


def _device_cells(device: DeviceSummary, colour: str) -> tuple[str, ...]:
    stay = f"{duration(device.first_s)} to {duration(device.last_s)}"
    ending = tag("span", "lost", class_="badge lost") if device.lost_at_s is not None else ""
    coming = tag("span", "joined", class_="badge joined") if device.joined_at_s is not None else ""
    return (
        tag("td", _chip(colour), escape(device.member)),
        tag("td", escape(device.accelerator_type)),
        tag("td", " ".join(filter(None, (escape(stay), coming, ending)))),
        tag("td", f"{device.steps:,}", class_="n"),
        tag("td", f"{device.samples:,}", class_="n"),
        tag("td", percent(device.share_ratio), _meter(device.share_ratio, colour), class_="n"),
        tag("td", number(device.speed), class_="n"),
        tag("td", percent(device.utilisation_ratio), _meter(device.utilisation_ratio, colour), class_="n"),
    )


def _meter(ratio: float, colour: str) -> str:
    return tag("span", tag("i", style=f"width:{100 * ratio:.0f}%;background:{colour}"), class_="meter")


def _event_section(summary: RunSummary) -> str:
    heads = (("Time", "n"), ("Step", "n"), ("", ""), ("What", ""), ("Why", ""), ("Gap", "n"))
    rows = [tag("tr", *_event_cells(event)) for event in summary.events]
    if not rows:
        return _section("Events", "Nothing changed in the group during this run.")
    return _section("Events", "Everything that changed in the group or in the split, and why.", _table(heads, rows))


def _event_cells(event: RunEvent) -> tuple[str, ...]:
    return (
        tag("td", escape(duration(event.at_s, 1)), class_="n"),
        tag("td", f"{event.step:,}", class_="n"),
        tag("td", tag("span", event.kind, class_=f"badge {event.kind}")),
        tag("td", escape(event.what)),
        tag("td", escape(event.reason), class_="why"),
        tag("td", "" if event.gap_s is None else escape(duration(event.gap_s, 2)), class_="n"),
    )


def _table(heads: tuple[tuple[str, str], ...], rows: list[str]) -> str:
    head = tag("tr", *(tag("th", escape(text), class_=class_ or None) for text, class_ in heads))
    return tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll")


def _footer(summary: RunSummary) -> str:
    text = "Written by Plait from the timeline of the run. Times count from the start of the first step."
    if summary.unreadable_lines:
        lines = "line" if summary.unreadable_lines == 1 else "lines"
        text += f" {summary.unreadable_lines} {lines} of the timeline could not be read (cut off mid-write)."
    return tag("footer", escape(text))
