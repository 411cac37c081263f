"""Quantities as people write them in YAML: ``5m``, ``40GiB``, ``1Gbit/s``, ``"08:00"``; a number alone is refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from plait.errors import PlaitError
from plait.words import nearest

_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,9})?"


class QuantityError(PlaitError, ValueError):
    """A quantity is not written as it should be; the message says how to write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One kind of quantity: its units, the words people write for them, and an example.

    ``factors`` gives each unit in the base unit; ``slips`` maps wrong words to right units.
    """

    what: str
    example: str
    base_unit: str
    usual_unit: str
    factors: Mapping[str, Decimal]
    slips: Mapping[str, str]
    largest: Decimal

    @property
    def pattern(self) -> str:
        """The regular expression that a well-written value matches."""
        units = "|".join(re.escape(unit) for unit in self.factors)
        return rf"^{_NUMBER}({units})$"

    def parse(self, value: object) -> Decimal:
        """Returns the value in the base unit.

        Raises:
            QuantityError: the value is a number without unit, has an unknown unit, or is not a quantity at all.
        """
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise QuantityError(f"a {self.what} needs a unit, such as {self._with_unit(str(value))}; got {value}")
        if not isinstance(value, str):
            raise QuantityError(self._refusal(value))
        match = re.fullmatch(rf"({_NUMBER})(\s*)(\S*)", value)
        if match is None:
            raise QuantityError(self._refusal(value))
        number, gap, unit = match.groups()
        if not unit:
            raise QuantityError(f"a {self.what} needs a unit, such as {self._with_unit(number)}; got {value!r}")
        if unit not in self.factors:
            raise QuantityError(self._unknown_unit(value, number, unit))
        if gap:
            raise QuantityError(f"no blank between number and unit; got {value!r}; did you mean '{number}{unit}'?")
        return self._in_range(Decimal(number) * self.factors[unit], value)

    def _with_unit(self, number: str) -> str:
        # Small numbers are meant in a large unit: nobody asks for 40 bytes of memory.
        is_small = len(number.partition(".")[0]) < 5
        return f"{number}{self.usual_unit if is_small else self.base_unit}"

    def _in_range(self, amount: Decimal, value: str) -> Decimal:
        if amount <= 0:
            raise QuantityError(f"a {self.what} must be more than 0; got {value!r}")
        if amount > self.largest:
            raise QuantityError(f"this {self.what} is too large; got {value!r}")
        return amount

    def _unknown_unit(self, value: str, number: str, unit: str) -> str:
        if not re.fullmatch(r"[A-Za-z/]+", unit):
            return self._refusal(value)
        near = self.slips.get(unit) or self.slips.get(unit.casefold()) or nearest(unit, self.factors)
        if near:
            return f"unknown unit {unit!r}; did you mean '{number}{near}'?"
        return f"unknown unit {unit!r}; units here are {', '.join(self.factors)}"

    def _refusal(self, value: object) -> str:
        return f"expected a {self.what} such as {self.example}; got {shown(value)}"


def shown(value: object) -> str:
    """Returns the value as an error message quotes it: short, on one line, printable."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if not isinstance(value, str):
        return repr(value)
    text = str(value) if len(value) <= 56 else f"{value[:53]}..."
    return repr(text) if text.isprintable() else ascii(text)


_SI = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_BYTES = {f"{prefix}B": Decimal(factor) for prefix, factor in (_SI | _BINARY).items()}
_BITS = {f"{prefix}bit/s": Decimal(factor) / 8 for prefix, factor in {**_SI, "k": 10**3}.items() if prefix != "K"}

DURATION = Quantity(
    what="duration",
    example="5m",
    base_unit="s",
    usual_unit="s",
    factors={
        "ms": Decimal("0.001"),
        "s": Decimal(1),
        "m": Decimal(60),
        "h": Decimal(3600),
        "d": Decimal(86400),
    },
    slips={"msec": "ms", "millis": "ms", "sec": "s", "secs": "s", "second": "s", "seconds": "s", "min": "m"}
    | {"mins": "m", "minute": "m", "minutes": "m", "hr": "h", "hrs": "h", "hour": "h", "hours": "h"}
    | {"day": "d", "days": "d"},
    largest=Decimal(10) ** 10,
)

SIZE = Quantity(
    what="size",
    example="40GiB",
    base_unit="B",
    usual_unit="GiB",
    factors=_BYTES,
    slips={"k": "KB", "m": "MB", "g": "GB", "t": "TB", "Ki": "KiB", "Mi": "MiB", "Gi": "GiB", "Ti": "TiB"}
    | {"gig": "GB", "gigs": "GB", "meg": "MB", "megs": "MB", "byte": "B", "bytes": "B"},
    largest=Decimal(2**63 - 1),
)

RATE = Quantity(
    what="rate",
    example="1Gbit/s",
    base_unit="B/s",
    usual_unit="Mbit/s",
    factors={f"{unit}/s": factor for unit, factor in _BYTES.items()} | _BITS,
    slips={f"{p}bps": f"{p}bit/s" for p in ("k", "M", "G", "T")}
    | {f"{p}b/s": f"{p}bit/s" for p in ("k", "M", "G", "T")}
    | {f"{p}bit": f"{p}bit/s" for p in ("k", "M", "G", "T")}
    | {f"{p}Bps": f"{p}B/s" for p in ("K", "M", "G", "T")}
    | {"bps": "bit/s", "mbps": "Mbit/s", "gbps": "Gbit/s", "mbit": "Mbit/s", "gbit": "Gbit/s"},
    largest=Decimal(2**63 - 1),
)

TIME_OF_DAY_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]$|^24:00$"


def parse_duration(value: object) -> float:
    """Returns seconds from text such as ``300ms``, ``5m``, ``1.5h``."""
    return float(DURATION.parse(value))


def parse_size(value: object) -> int:
    """Returns bytes from text such as ``40GiB`` (2**30) or ``40GB`` (10**9), rounded to whole bytes."""
    amount = int(SIZE.parse(value).to_integral_value())
    if amount == 0:
        raise QuantityError(f"a size must be at least 1B; got {value!r}")
    return amount


def parse_rate(value: object) -> float:
    """Returns bytes per second from text such as ``100Mbit/s``, ``125MB/s``."""
    return float(RATE.parse(value))


def parse_time_of_day(value: object) -> int:
    """Returns seconds after midnight from text such as ``08:00``; ``24:00`` is the end of the day."""
    if isinstance(value, str):
        if re.fullmatch(TIME_OF_DAY_PATTERN, value):
            hours, minutes = value.split(":")
            return int(hours) * 3600 + int(minutes) * 60
        if (short := re.fullmatch(r"(\d):([0-5]\d)(?::00)?", value)) is not None:
            raise QuantityError(
                f'a time of day has two digits each; got {value!r}; did you mean "0{short[1]}:{short[2]}"?'
            )
        if re.fullmatch(r"[0-9]{1,2}:[0-9]{1,2}", value):
            raise QuantityError(f"times of day go from 00:00 to 24:00; got {value!r}")
    raise QuantityError(f'expected a quoted time of day such as "08:00"; got {shown(value)}')


def parse_cores(value: object) -> float:
    """Returns a number of CPU cores, such as 0.5."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise QuantityError(f"expected a number of cores such as 0.5; got {shown(value)}")
    if not 0 < value <= 100_000:
        raise QuantityError(f"expected more than 0 and at most 100000 cores; got {value}")
    return float(value)


def duration_text(seconds: float) -> str:
    """Returns a duration as one would write it: ``200ms``, ``90s``, ``5m``."""
    for unit in ("d", "h", "m", "s"):
        factor = int(DURATION.factors[unit])
        if seconds >= factor and seconds % factor == 0:
            return f"{int(seconds // factor)}{unit}"
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"


def time_of_day_text(seconds: int) -> str:
    """Returns a time of day as one would write it: ``08:00``."""
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}"


def size_text(size_bytes: int) -> str:
    """Returns a size as one would write it: ``16GiB``, ``1500MB``, ``70B``."""
    for unit in ("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "KB"):
        factor = int(_BYTES[unit])
        if size_bytes >= factor and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}B"
