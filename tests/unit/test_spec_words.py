import pytest

from plait.words import did_you_mean, likeness, nearest


@pytest.mark.parametrize(
    ("word", "options", "expected"),
    [
        ("precison", ("precision", "type"), "precision"),
        ("Fairness", ("fairness", "throughput"), "fairness"),
        ("by-throughput", ("even", "by_throughput"), "by_throughput"),
        ("shrink", ("shrink_microbatch", "restart", "fail"), "shrink_microbatch"),
        ("Tesla T4", ("T4", "A40"), "T4"),
        ("zebra", ("name", "tasks"), None),
        ("retries", ("resources", "needs"), None),
        ("", ("name",), None),
        ("x", (), None),
        ("---", ("name",), None),
    ],
)
def test_nearest(word: str, options: tuple[str, ...], expected: str | None) -> None:
    assert nearest(word, options) == expected


def test_ties_do_not_depend_on_the_order_of_options() -> None:
    options = ("Ascend910C", "Ascend910A", "Ascend910B")
    assert {nearest("Ascend910", options), nearest("Ascend910", options[::-1])} == {"Ascend910A"}


def test_very_long_words_are_compared_in_part() -> None:
    assert nearest("a" * 1_000_000, ("abc", "b" * 1_000_000)) is None
    assert 0 <= likeness("a" * 1_000_000, "b" * 1_000_000) <= 1


def test_hint() -> None:
    assert did_you_mean("nmae", ("name",)) == "; did you mean 'name'?"
    assert did_you_mean("zebra", ("name",)) == ""
