"""``plait simulate`` from the command line, and its report."""

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from plait.cli.main import execute

TRACE = "timestamp,duration,num_gpus,gpu_time,cluster\n" + "".join(
    f"2017-10-09 0{i % 8}:{i % 60:02d}:00,{600 + 37 * i},{(1, 1, 2, 4)[i % 4]},1,vc{i % 2}\n" for i in range(30)
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(TRACE)
    return path


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in {"src", "href"}]


def test_policies_side_by_side(trace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "out" / "report.html"
    code = execute(
        ["simulate", str(trace), "--cluster", "V100:1x4,T4:1x4", "--price", "V100=2", "--policy", "srtf",
         "--against", "fifo", "--html", str(page)]
    )  # fmt: skip
    out = capfd.readouterr().out
    assert code == 0
    assert "30 jobs of jobs.csv (Philly (CSV)) on 4 V100, 4 T4" in out
    assert "against fifo" in out
    assert f"report: {page}" in out
    parsed = _Page()
    parsed.feed(page.read_text())
    assert parsed.references == [], "the page needs no other file"
    assert parsed.tags.count("svg") == 7
    assert "srtf against fifo" in page.read_text()


def test_one_document_for_programs(trace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", str(trace), "--cluster", "V100:2x4", "--policy", "sia", "--against", "las", "--json"]
    assert execute(arguments) == 0
    document = json.loads(capfd.readouterr().out)
    assert set(document["policies"]) == {"sia", "las"}
    assert document["policies"]["sia"]["unfinished_jobs"] == 0
    assert execute(arguments) == 0
    again = json.loads(capfd.readouterr().out)
    for found in (document, again):
        for policy in found["policies"].values():
            policy.pop("solve_ms_mean")
            policy.pop("solve_ms_max")
    assert again == document


def test_the_simulator_of_rounds(trace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = execute(["simulate", str(trace), "--cluster", "V100:2x4", "--engine", "rounds", "--json"])
    assert code == 0
    assert json.loads(capfd.readouterr().out)["policies"]["fifo_backfill"]["unfinished_jobs"] == 0


def test_jobs_that_do_not_fit_are_told(trace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["simulate", str(trace), "--cluster", "V100:2"]) == 0
    assert "left out 7 jobs that the cluster could not even hold when idle" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name the cluster with --cluster"),
        (["--cluster", "V100"], "no cluster: 'V100'"),
        (["--cluster", "V100:4", "--policy", "srtff"], "there is no scheduling policy 'srtff'; did you mean 'srtf'?"),
        (["--cluster", "V100:4", "--engine", "fast"], "--engine is live or rounds, not 'fast'"),
        (["--cluster", "V100:4", "--price", "2"], "no price: '2'"),
    ],
)
def test_wrong_words_are_told(trace: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    assert execute(["simulate", str(trace), *arguments]) != 0
    assert told in capfd.readouterr().err
