"""Scales, ticks and SVG elements: what the charts are drawn with. All text is escaped here."""

import math
from dataclasses import dataclass
from html import escape

_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map from values ``low..high`` to pixels ``start..end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Returns the pixel of a value."""
        width = self.high - self.low
        ratio = (value - self.low) / width if width else 0.0
        return self.start + ratio * (self.end - self.start)


def tag(name: str, *children: str, **attributes: object) -> str:
    """Returns an element; children are ready markup, attribute values are escaped, ``_`` in names reads ``-``."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(children)}</{name}>"


def label(x: float, y: float, text: str, class_: str = "tick", anchor: str = "start") -> str:
    """Returns a line of text with its baseline at ``y``."""
    return tag("text", escape(text), x=x, y=y, class_=class_, text_anchor=anchor)


def path(points: list[tuple[float, float]], *, closed: bool = False, **attributes: object) -> str:
    """Returns a polyline through the points."""
    if not points:
        return ""
    steps = "L".join(f"{_short(x)} {_short(y)}" for x, y in points)
    return tag("path", d=f"M{steps}{'Z' if closed else ''}", **attributes)


def ticks(low: float, high: float, count: int = 5) -> tuple[float, ...]:
    """Returns round values (1, 2, 2.5 or 5 times a power of ten apart) within ``low..high``."""
    if not high > low:
        return (low,)
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return tuple(index * step for index in range(first, math.floor(high / step + 1e-9) + 1))


def tick_text(value: float, all_ticks: tuple[float, ...]) -> str:
    """Returns a tick's text with as many decimals as its axis needs and no more."""
    places = next((p for p in range(7) if all(abs(t - round(t, p)) < 1e-9 + 1e-6 * abs(t) for t in all_ticks)), 7)
    return f"{value:,.{places}f}"


def time_ticks(duration_s: float, count: int = 8) -> tuple[float, ...]:
    """Returns round times from 0 to the duration: whole seconds, minutes, hours or days apart."""
    if duration_s < count:
        return ticks(0.0, duration_s, count)
    days_s = 86400 * math.ceil(duration_s / count / 86400)
    step = next((step for step in _TIME_STEPS_S if duration_s / step <= count), days_s)
    return tuple(float(index * step) for index in range(int(duration_s // step) + 1))


def duration(seconds: float, places: int = 0) -> str:
    """Returns seconds as people say them: ``8.4 s``, ``1:05 min``, ``2:10 h``."""
    whole = round(seconds)
    if round(seconds, places) < 60:
        return f"{seconds:.{places}f} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h"


def number(value: float, digits: int = 3) -> str:
    """Returns a number with ``digits`` significant digits and separated thousands."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def percent(ratio: float) -> str:
    """Returns a ratio in whole per cent."""
    return f"{100 * ratio:.0f} %"


def _short(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
