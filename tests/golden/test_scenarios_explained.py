"""Scenario files: each names the constraint that binds a waiting task; the machine has to find the same one."""

from pathlib import Path

import pytest

from plait.cli.main import execute
from plait.errors import SpecError
from plait.schedule.explain import explain
from plait.schedule.on_paper import played, told, unmet
from plait.spec.load import load_scenario

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.yaml"))
KINDS = ("quota", "topology", "price", "gang", "dependency", "window", "memory", "priority", "reservation")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_binding_constraint_is_found(file: Path) -> None:
    scenario = load_scenario(file)
    state = played(scenario)
    assert scenario.expect
    assert unmet(scenario, told(scenario, state)) == ()
    text = "\n".join(line for job_id in state.open_jobs for line in explain(state, job_id))
    for one in scenario.expect:
        assert f"waits for: {one.constraint}: " in text


def test_every_kind_is_asked_at_least_twice() -> None:
    asked: list[str] = [one.constraint for file in FILES for one in load_scenario(file).expect]
    assert len(FILES) >= 20
    assert all(asked.count(kind) >= 2 for kind in KINDS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_without_its_constraint_the_task_waits_for_something_else(file: Path, tmp_path: Path) -> None:
    """A wrong expectation is told: the comparison can fail."""
    text = file.read_text(encoding="utf-8")
    wrong = text.replace("constraint: ", "constraint: restart # ")
    wrong = "\n".join(
        line.partition(" #")[0] + "}" if "constraint: restart" in line else line for line in wrong.split("\n")
    )
    copy = tmp_path / "wrong.yaml"
    copy.write_text(wrong, encoding="utf-8")
    scenario = load_scenario(copy)
    assert len(unmet(scenario, told(scenario))) == len(scenario.expect)


def test_the_verb_prints_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parent / "scenarios" / "quota-limit.yaml"
    assert execute(["explain", "--scenario", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "waits for: quota: the limit of project vision" in printed
    assert "as expected: 1 of 1" in printed


def test_where_no_window_tells_of_a_lower_price_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parent / "scenarios" / "price-spot.yaml"
    assert execute(["explain", "--scenario", str(file)]) == 0
    assert "when: not known: no price window says when A100 or V100 will be cheaper" in capsys.readouterr().out


BROKEN = {
    "constraint: gangs": "did you mean",
    "job: third": "the scenario has no job 'third'",
    "constraint: quota, starts_in: soon": "starts_in",
}


@pytest.mark.parametrize(("written", "said"), BROKEN.items())
def test_faults_of_a_file_are_told_with_their_place(written: str, said: str, tmp_path: Path) -> None:
    text = (Path(__file__).parent / "scenarios" / "quota-limit.yaml").read_text(encoding="utf-8")
    old = "job: second" if written.startswith("job") else "constraint: quota, starts_in: 2h"
    copy = tmp_path / "broken.yaml"
    copy.write_text(text.replace(old, written), encoding="utf-8")
    with pytest.raises(SpecError) as error:
        load_scenario(copy)
    assert said in str(error.value)
    assert "broken.yaml:17" in str(error.value)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("{ago: 1h}", "an event tells one thing"),
        ("{drain: n0, lose: n0}", "an event tells one thing"),
        ("{drain: n9}", "the scenario has no node 'n9'"),
        ("{finish: first/tran}", "job 'first' has no task 'tran'; did you mean 'train'?"),
    ],
)
def test_faults_of_events_are_told(event: str, said: str, tmp_path: Path) -> None:
    text = (Path(__file__).parent / "scenarios" / "quota-limit.yaml").read_text(encoding="utf-8")
    copy = tmp_path / "broken.yaml"
    copy.write_text(f"{text}events: [{event}]\n", encoding="utf-8")
    with pytest.raises(SpecError) as error:
        load_scenario(copy)
    assert said in str(error.value)
