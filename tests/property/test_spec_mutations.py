"""Whatever is done to a good file, the loader returns a value or raises SpecError with a place for every problem."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.errors import SpecError
from plait.spec.cluster import Cluster
from plait.spec.job import Job
from plait.spec.load import parse_cluster, parse_job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
JOB = (EXAMPLES / "job.yaml").read_text(encoding="utf-8")
CLUSTER = (EXAMPLES / "cluster.yaml").read_text(encoding="utf-8")

FRAGMENTS = st.sampled_from(
    (
        *("\t", ": ", "- ", "{", "}", "[", "]", "'", '"', "&a ", "*a", "<<: ", "!!int ", "? ", "---\n", "\n", "#"),
        *("~", "0x1", "010", "22:00", "yes", "no", "null", "1e999", ".nan", "\0", "\ufeff", "\ud800", "|", ">", "%"),
        *("@", ", ", "5min", "9" * 5000, "[" * 2000, "\u00e9", "\u2028", "\x85", "name: x\n", "memory: 1TiB", "-1"),
        *("16 GB", "s3:/", "\U0001d4b3"),
    )
)
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LINE = re.compile(r"f\.yaml:[1-9]\d*:[1-9]\d*: .+")


def read(text: str | bytes, *, is_job: bool) -> Job | Cluster | None:
    problems: tuple[str, ...] = ()
    value: Job | Cluster | None = None
    try:
        value = parse_job(text, "f.yaml") if is_job else parse_cluster(text, "f.yaml")
    except SpecError as error:
        problems = error.problems
    assert (value is None) == bool(problems)
    assert len(set(problems)) == len(problems)
    for problem in problems:
        assert LINE.fullmatch(problem), problem
        assert problem.encode("utf-8")
    return value


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 12)))
        piece = draw(FRAGMENTS | st.text(max_size=5))
        text = text[:start] + piece + text[end:]
    return text


@QUICK
@given(mutated(JOB))
def test_mutated_jobs(text: str) -> None:
    read(text, is_job=True)


@QUICK
@given(mutated(CLUSTER))
def test_mutated_clusters(text: str) -> None:
    read(text, is_job=False)


@QUICK
@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_bytes_and_text(text: bytes | str) -> None:
    read(text, is_job=True)
    read(text, is_job=False)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["5m", "40GiB", "1Gbit/s", "A100", "fp16", "08:00", "s3://b/p", "train", "multi_objective", "v1"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


def places(node: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    if isinstance(node, dict):
        found += [place for key, value in node.items() for place in places(value, (*path, key))]
    if isinstance(node, list):
        found += [place for index, value in enumerate(node) for place in places(value, (*path, index))]
    return found


@pytest.mark.parametrize("is_job", [True, False])
@QUICK
@given(data=st.data())
def test_any_value_at_any_place(is_job: bool, data: st.DataObject) -> None:
    root = yaml.safe_load(JOB if is_job else CLUSTER)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(root)))
        holder = root
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = data.draw(VALUES)
    read(yaml.safe_dump(root, allow_unicode=True, default_style=data.draw(st.sampled_from([None, '"']))), is_job=is_job)


@QUICK
@given(st.data())
def test_one_wrong_word_is_one_problem_at_its_place(data: st.DataObject) -> None:
    """A key that is misspelt beyond recognition is reported once, at its line and column, whatever key it is."""
    lines = JOB.splitlines()
    keys = [
        (number, match.start(1))
        for number, line in enumerate(lines)
        if (match := re.match(r"\s*(?:- )?([a-z_]+):", line)) is not None
        and match[1] not in {"name", "command", "tasks", "url", "source", "any_of", "global_batch_size"}
    ]
    number, column = data.draw(st.sampled_from(keys))
    key = re.match(r"[a-z_]+", lines[number][column:])
    assert key is not None
    lines[number] = lines[number][:column] + "qqq" + lines[number][column + key.end() :]
    with pytest.raises(SpecError) as caught:
        parse_job("\n".join(lines), "f.yaml")
    first, *others = caught.value.problems
    assert first.startswith(f"f.yaml:{number + 1}:{column + 1}: ")
    assert "qqq: unknown key; keys here are " in first
    assert not others
