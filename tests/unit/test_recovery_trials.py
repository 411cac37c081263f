"""Trials of recovery by cause, written down and read back: several runs count as one."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module("cause_results")
    for name in (set(sys.modules) - before) & {path.stem for path in BENCHMARKS.glob("*.py")}:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_trials_of_several_files_are_what_they_were(results: ModuleType, tmp_path: Path) -> None:
    fault = results.Fault("kill", 2, "instant", 9, whole_session=True)
    delay = results.Delay(since_fault_s=0.2, beyond_s=0.1, new_step=10)
    good = results.Result("kill", 0, results.Outcome(fault, delay), -9, is_bitwise=True, has_changed=True, hash="ab")
    bad = results.Result("kill", 1, results.Outcome(fault, problem="it did not end"), None, is_bitwise=False, loss=2.0)
    files = [tmp_path / "one", tmp_path / "other"]
    files[0].write_text(results.written(results.Undisturbed("ab", [1.0, 1.1])) + results.written(good))
    files[1].write_text(results.written(bad) + results.written(results.Undisturbed("ab", [0.9])))
    found, undisturbed = results.read_back(files)
    assert found == [good, bad]
    assert [one.is_finished for one in found] == [True, False]
    assert results.joined(undisturbed) == results.Undisturbed("ab", [1.0, 1.1, 0.9])
    assert results.compared(found, results.joined(undisturbed))["equal_share_changed"] == 1.0


def test_runs_whose_weights_differ_are_not_counted_together(results: ModuleType) -> None:
    with pytest.raises(ValueError, match="other weights"):
        results.joined([results.Undisturbed("ab", [1.0]), results.Undisturbed("cd", [1.0])])
