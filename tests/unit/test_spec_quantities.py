import pytest

from plait.errors import PlaitError
from plait.spec.units import (
    QuantityError,
    duration_text,
    parse_cores,
    parse_duration,
    parse_rate,
    parse_size,
    parse_time_of_day,
    shown,
    size_text,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("1s", 1.0), ("1.5s", 1.5), ("5m", 300.0), ("2h", 7200.0), ("1.5h", 5400.0), ("1d", 86400.0)],
)
def test_durations_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1B", 1),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("25MiB", 25 * 2**20),
        ("0.29GB", 290_000_000),
        ("40GiB", 40 * 2**30),
        ("1.5TiB", 3 * 2**39),
        ("2TB", 2 * 10**12),
    ],
)
def test_sizes_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("8bit/s", 1.0),
        ("8kbit/s", 1e3),
        ("100Mbit/s", 12.5e6),
        ("1Gbit/s", 125e6),
        ("1Tbit/s", 125e9),
        ("125MB/s", 125e6),
        ("1MiB/s", 2.0**20),
        ("7B/s", 7.0),
    ],
)
def test_rates_in_bytes_per_second(text: str, bytes_per_s: float) -> None:
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize(("text", "time_s"), [("00:00", 0), ("08:05", 29100), ("23:59", 86340), ("24:00", 86400)])
def test_times_of_day_in_seconds(text: str, time_s: int) -> None:
    assert parse_time_of_day(text) == time_s


@pytest.mark.parametrize(("value", "cores"), [(1, 1.0), (0.5, 0.5), (64, 64.0)])
def test_cores(value: float, cores: float) -> None:
    assert parse_cores(value) == cores


@pytest.mark.parametrize("value", [0, -1, True, "half", "500m", None, float("nan"), float("inf"), [1]])
def test_wrong_cores(value: object) -> None:
    with pytest.raises(QuantityError, match="cores"):
        parse_cores(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (300, "a duration needs a unit, such as 300s; got 300"),
        ("300", "a duration needs a unit, such as 300s; got '300'"),
        ("5min", "unknown unit 'min'; did you mean '5m'?"),
        ("5Minutes", "unknown unit 'Minutes'; did you mean '5m'?"),
        ("2hrs", "unknown unit 'hrs'; did you mean '2h'?"),
        ("5M", "unknown unit 'M'; did you mean '5m'?"),
        ("3fortnights", "unknown unit 'fortnights'; units here are ms, s, m, h, d"),
        ("5 m", "no blank between number and unit; got '5 m'; did you mean '5m'?"),
        ("0s", "a duration must be more than 0; got '0s'"),
        ("-5m", "expected a duration such as 5m; got '-5m'"),
        ("5m30s", "expected a duration such as 5m; got '5m30s'"),
        ("", "expected a duration such as 5m; got ''"),
        (True, "expected a duration such as 5m; got true"),
        (None, "expected a duration such as 5m; got nothing"),
        ([5], "expected a duration such as 5m; got a list"),
        ("٣s", "expected a duration such as 5m; got '٣s'"),
        ("999999999999d", "this duration is too large; got '999999999999d'"),
    ],
)
def test_wrong_durations_name_the_nearest_right_unit(value: object, message: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_duration(value)
    assert str(caught.value) == message
    assert isinstance(caught.value, PlaitError)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (40, "such as 40GiB"),
        (26214400, "such as 26214400B"),
        ("40gb", "'40GB'"),
        ("40Gib", "'40GiB'"),
        ("40Gi", "'40GiB'"),
        ("40G", "'40GB'"),
        ("500gigs", "'500GB'"),
        ("0.1B", "at least 1B"),
    ],
)
def test_wrong_sizes_name_the_nearest_right_unit(value: object, hint: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_size(value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (100, "such as 100Mbit/s"),
        ("100Mbps", "'100Mbit/s'"),
        ("100mbps", "'100Mbit/s'"),
        ("100MBps", "'100MB/s'"),
        ("1Gb/s", "'1Gbit/s'"),
        ("1Gbit", "'1Gbit/s'"),
        ("1GB", "'1GB/s'"),
        ("1gbit/s", "'1Gbit/s'"),
    ],
)
def test_wrong_rates_name_the_nearest_right_unit(value: object, hint: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_rate(value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("value", "hint"),
    [("8:00", '"08:00"'), ("25:00", "00:00 to 24:00"), ("24:01", "24:00"), ("8am", '"08:00"'), (480, "got 480")],
)
def test_wrong_times_of_day(value: object, hint: str) -> None:
    with pytest.raises(QuantityError) as caught:
        parse_time_of_day(value)
    assert hint in str(caught.value)


def test_texts_of_quantities_parse_back() -> None:
    for seconds in (0.0005, 0.2, 1.0, 1.5, 59.0, 60.0, 90.0, 300.0, 3600.0, 86400.0 * 3):
        assert parse_duration(duration_text(seconds)) == pytest.approx(seconds)
    for size in (1, 999, 1000, 1024, 1500, 25 * 2**20, 40 * 2**30, 10**12):
        assert parse_size(size_text(size)) == size


def test_shown_values_are_short_and_printable() -> None:
    assert shown("\x07\ud800") == r"'\x07\ud800'"
    assert shown("x" * 1000) == f"'{'x' * 53}...'"
    assert shown("\x07" * 1000).isprintable()
    assert shown({"a": 1}) == "a mapping"
