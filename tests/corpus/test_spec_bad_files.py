"""Every wrong file of the corpus: exactly the expected problems, at the expected places, and nothing else.

A file ``NAME.yaml`` stands beside ``NAME.expected``, which holds one line a problem without the file's name. Names that
start with ``cluster_`` are cluster files; those with ``with_cluster_`` are jobs that are checked with a cluster.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from plait.errors import SpecError
from plait.spec.load import load_cluster, load_job

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "data" / "bad_specs"
EXAMPLES = ROOT.parent / "examples"
NAMES = sorted(path.stem for path in CORPUS.glob("*.yaml"))


def reader_of(name: str) -> Callable[[Path], object]:
    if name.startswith("cluster_"):
        return load_cluster
    if name.startswith("with_cluster_"):
        return lambda path: load_job(path, load_cluster(EXAMPLES / "cluster.yaml"))
    return load_job


@pytest.mark.parametrize("name", NAMES)
def test_tells_exactly_the_expected_problems(name: str) -> None:
    path = CORPUS / f"{name}.yaml"
    expected = (CORPUS / f"{name}.expected").read_text(encoding="utf-8").splitlines()
    with pytest.raises(SpecError) as caught:
        reader_of(name)(path)
    assert [problem.removeprefix(f"{path}:") for problem in caught.value.problems] == expected


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_sorted_and_start_with_file_line_and_column(name: str) -> None:
    path = CORPUS / f"{name}.yaml"
    with pytest.raises(SpecError) as caught:
        reader_of(name)(path)
    places = []
    for problem in caught.value.problems:
        assert problem.startswith(f"{path}:")
        line, column, message = problem.removeprefix(f"{path}:").split(":", 2)
        places.append((int(line), int(column)))
        assert message.startswith(" ")
        assert problem.isprintable()
    assert places == sorted(places)


def test_the_corpus_is_large_enough_and_complete() -> None:
    assert len(NAMES) >= 48
    assert sorted(path.stem for path in CORPUS.glob("*.expected")) == NAMES


def test_problems_point_at_what_they_quote() -> None:
    """Where a message quotes a value, the named column holds that value or an opening quote before it."""
    checked = 0
    for name in NAMES:
        lines = (CORPUS / f"{name}.yaml").read_bytes().decode("utf-8", "replace").splitlines()
        for problem in (CORPUS / f"{name}.expected").read_text(encoding="utf-8").splitlines():
            _, found, quoted = problem.rpartition("; got '")
            word = quoted.partition("'")[0]
            word = word.removesuffix("...")
            if not found or not word or "\\" in word:
                continue
            line, column = (int(part) for part in problem.split(":", 2)[:2])
            assert lines[line - 1][column - 1 :].lstrip("\"'").startswith(word), (name, problem)
            checked += 1
    assert checked > 40
