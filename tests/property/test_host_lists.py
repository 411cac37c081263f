"""Lists of names and sets of numbers survive being written and read."""

from hypothesis import given
from hypothesis import strategies as st

from plait.hardware.cpusets import as_list, as_mask, cpus_of_list, cpus_of_mask
from plait.hardware.importers.hostlist import compress, expand

NAMES = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}d}",
    st.sampled_from(["n", "tux", "rack1-", "switch.2."]),
    st.integers(0, 12000),
    st.integers(1, 5),
)


@given(st.lists(NAMES, min_size=1, max_size=60))
def test_names_survive(names: list[str]) -> None:
    assert expand(compress(tuple(names))) == tuple(names)


@given(st.integers(0, 900), st.integers(1, 200), st.sampled_from(["n", "a-"]))
def test_runs_are_written_in_one_bracket(first: int, count: int, prefix: str) -> None:
    names = tuple(f"{prefix}{n:04d}" for n in range(first, first + count))
    assert compress(names).count("[") <= 1
    assert expand(compress(names)) == names


@given(st.frozensets(st.integers(0, 4000), min_size=1))
def test_numbers_survive_as_list_and_as_mask(numbers: frozenset[int]) -> None:
    assert cpus_of_list(as_list(numbers)) == numbers
    assert cpus_of_mask(as_mask(numbers)) == numbers


@given(st.text(alphabet="abn[]-,0159 .", max_size=40))
def test_no_text_crashes_the_reader_and_brackets_bound_it(text: str) -> None:
    names = expand(text)
    assert names is None or len(names) <= 65536
