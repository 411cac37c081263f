"""SVG in words: boxes, lines and text that hold on light and dark pages alike."""

from dataclasses import dataclass, field
from typing import NamedTuple
from xml.sax.saxutils import escape

STEPS_GB_PER_S = (5.0, 15.0, 40.0, 100.0, 250.0)
"""Where one colour of the scale ends and the next begins."""

COLOURS = ("#c2483d", "#d97a1e", "#a8921a", "#3f9a52", "#2289a5", "#4a68d8")
"""From slow to fast; each reads on white and on near-black, and in grey the order of line widths still tells."""

WIDTHS = (1.2, 1.6, 2.1, 2.7, 3.4, 4.2)

_STYLE = """
svg { font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 11px;
  --page: #ffffff; --ink: #1b1f24; --soft: #5b6570; --edge: #b9c1c9; --node: #f6f8fa; --box: #eceff3; --tile: #ffffff; }
@media (prefers-color-scheme: dark) { svg { --page: #12161b; --ink: #e8edf2; --soft: #9aa5b1; --edge: #47515c;
  --node: #181d23; --box: #20262d; --tile: #12161b; } }
.page { fill: var(--page); } .node { fill: var(--node); stroke: var(--edge); }
.box { fill: var(--box); stroke: var(--edge); }
.tile { fill: var(--tile); stroke: var(--edge); } text { fill: var(--ink); } .soft { fill: var(--soft); }
.title { font-weight: 600; font-size: 13px; } .name { font-weight: 600; } .small { font-size: 9.5px; }
.unknown { fill: none; stroke: var(--edge); stroke-dasharray: 3 3; }
"""


def step_of(bytes_per_s: float) -> int:
    """Returns the place of a rate on the colour scale."""
    return sum(bytes_per_s / 1e9 >= step for step in STEPS_GB_PER_S)


def rate_words(bytes_per_s: float | None) -> str:
    """Returns ``264`` for 264e9 bytes/s, ``?`` for unknown."""
    if bytes_per_s is None or bytes_per_s != bytes_per_s:  # noqa: PLR0124 - NaN
        return "?"
    return f"{bytes_per_s / 1e9:.3g}" if bytes_per_s < 999.5e9 else f"{bytes_per_s / 1e9:.0f}"


class Rect(NamedTuple):
    """A place on the page, in pixels."""

    x: float
    y: float
    width: float
    height: float

    def words(self) -> str:
        """Returns the attributes of SVG."""
        return f'x="{self.x:.1f}" y="{self.y:.1f}" width="{self.width:.1f}" height="{self.height:.1f}"'


@dataclass(slots=True)
class Drawing:
    """Collects shapes; later ones lie above earlier ones."""

    parts: list[str] = field(default_factory=list)

    def box(self, place: Rect, kind: str, tip: str = "") -> None:
        """Draws a rounded box; ``tip`` shows when the pointer rests on it."""
        title = f"<title>{escape(tip)}</title>" if tip else ""
        self.parts.append(f'<rect class="{kind}" {place.words()} rx="5">{title}</rect>')

    def text(
        self, at: tuple[float, float], words: str, kind: str = "", *, anchor: str = "start", room: float = 0
    ) -> None:
        """Writes words; longer ones than ``room`` pixels are cut."""
        if room:
            most = max(1, int(room / (5.9 if "small" in kind else 7.4)))
            words = words if len(words) <= most else words[: most - 1] + "…"
        x, y = at
        self.parts.append(f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>')

    def path(self, points: str, bytes_per_s: float | None, tip: str = "") -> None:
        """Draws a line in the colour and width of its rate, dashed where that is unknown."""
        title = f"<title>{escape(tip)}</title>" if tip else ""
        if bytes_per_s is None:
            look = 'stroke="var(--soft)" stroke-width="1.2" stroke-dasharray="4 3"'
        else:
            step = step_of(bytes_per_s)
            look = f'stroke="{COLOURS[step]}" stroke-width="{WIDTHS[step]}"'
        self.parts.append(f'<path d="{points}" fill="none" {look}>{title}</path>')

    def patch(self, place: Rect, bytes_per_s: float, tip: str) -> None:
        """Draws a tinted cell."""
        colour = COLOURS[step_of(bytes_per_s)]
        self.parts.append(
            f'<rect {place.words()} rx="2" fill="{colour}" '
            f'fill-opacity="0.3" stroke="{colour}" stroke-width="0.8"><title>{escape(tip)}</title></rect>'
        )

    def document(self, width: float, height: float, title: str) -> str:
        """Returns the whole SVG."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img"><title>{escape(title)}</title><style>{_STYLE}</style>'
        )
        page = f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>'
        return "\n".join((head, page, *self.parts, "</svg>", ""))
