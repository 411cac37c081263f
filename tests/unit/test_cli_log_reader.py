"""Merging and following the logs of workers."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from plait.cli.connection import ControllerClient
from plait.cli.failures import UnknownName
from plait.cli.log_reader import LogReader
from plait.controller.client import LogChunk


@dataclass
class LogsOnly:
    """Serves log files in pieces of at most ``piece`` bytes."""

    files: dict[tuple[str, int, str], bytes] = field(default_factory=dict)
    piece: int = 1 << 20

    def logs(self, job_id: str, *, task: str, worker: str, attempt: int, offset: int = 0) -> LogChunk:
        data = self.files.get((task, attempt, worker), b"")[offset : offset + self.piece]
        return LogChunk(text=data.decode(), next_offset=offset + len(data))


def job_of(workers: dict[str, list[str]], attempt: int = 1, state: str = "running") -> Any:
    tasks = [
        {
            "task": task,
            "attempt_id": f"j-1/{task}/{attempt}",
            "placement": [{"worker_id": name, "rank": int(name[1:])} for name in names],
        }
        for task, names in workers.items()
    ]
    return {"job_id": "j-1", "state": state, "tasks": tasks}


def reader_of(client: LogsOnly, **chosen: Any) -> LogReader:
    return LogReader(cast("ControllerClient", client), "j-1", **chosen)


def stamp(second: int, text: str) -> bytes:
    return f"2026-01-01T00:00:{second:02d}.000000Z out {text}\n".encode()


def test_lines_of_workers_are_merged_by_time() -> None:
    client = LogsOnly({("t", 1, "w0"): stamp(1, "a") + stamp(3, "c"), ("t", 1, "w1"): stamp(2, "b") + stamp(4, "d")})
    lines = reader_of(client).read(job_of({"t": ["w0", "w1"]}))
    assert [(line.worker, line.text) for line in lines] == [("w0", "a"), ("w1", "b"), ("w0", "c"), ("w1", "d")]


def test_a_line_without_a_stamp_stays_behind_the_one_before_it() -> None:
    client = LogsOnly({("t", 1, "w0"): stamp(1, "a") + b"loose\n" + stamp(9, "z"), ("t", 1, "w1"): stamp(5, "b")})
    lines = reader_of(client).read(job_of({"t": ["w0", "w1"]}))
    assert [line.text for line in lines] == ["a", "loose", "b", "z"]


@pytest.mark.parametrize("piece", [1, 7, 64])
def test_small_pieces_give_whole_lines_once(piece: int) -> None:
    client = LogsOnly({("t", 1, "w0"): stamp(1, "one") + stamp(2, "two")}, piece=piece)
    reader = reader_of(client)
    job = job_of({"t": ["w0"]})
    assert [line.text for line in reader.read(job)] == ["one", "two"]
    client.files["t", 1, "w0"] += stamp(3, "three")[:-4]
    assert reader.read(job) == []
    client.files["t", 1, "w0"] += stamp(3, "three")[-4:]
    assert [line.text for line in reader.read(job)] == ["three"]


def test_an_unfinished_line_is_shown_once_the_job_has_ended() -> None:
    client = LogsOnly({("t", 1, "w0"): b"no end"})
    reader = reader_of(client)
    assert reader.read(job_of({"t": ["w0"]})) == []
    assert [line.text for line in reader.read(job_of({"t": ["w0"]}, state="failed"))] == ["no end"]
    assert reader.read(job_of({"t": ["w0"]}, state="failed")) == []


def test_a_new_attempt_starts_at_its_own_beginning() -> None:
    client = LogsOnly({("t", 1, "w0"): stamp(1, "first"), ("t", 2, "w0"): stamp(2, "second")})
    reader = reader_of(client)
    assert [line.text for line in reader.read(job_of({"t": ["w0"]}, attempt=1))] == ["first"]
    again = reader.read(job_of({"t": ["w0"]}, attempt=2))
    assert [(line.attempt, line.text) for line in again] == [(2, "second")]


def test_the_rest_of_an_attempt_that_ended_is_not_lost() -> None:
    client = LogsOnly({("t", 1, "w0"): stamp(1, "first")})
    reader = reader_of(client)
    reader.read(job_of({"t": ["w0"]}, attempt=1))
    client.files["t", 1, "w0"] += stamp(2, "dying words")
    assert [line.text for line in reader.read(job_of({"t": ["w0"]}, attempt=2))] == ["dying words"]


def test_rank_worker_and_task_choose() -> None:
    client = LogsOnly({("t", 1, "w0"): stamp(1, "t0"), ("t", 1, "w1"): stamp(2, "t1"), ("u", 1, "w0"): stamp(3, "u0")})
    job = job_of({"t": ["w0", "w1"], "u": ["w0"]})
    assert [line.text for line in reader_of(client, rank=1).read(job)] == ["t1"]
    assert [line.text for line in reader_of(client, worker="w0").read(job)] == ["t0", "u0"]
    assert [line.text for line in reader_of(client, tasks=frozenset({"u"})).read(job)] == ["u0"]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"tasks": frozenset({"trian"})}, "there is no task 'trian'; did you mean 'train'?"),
        ({"worker": "w7"}, "there is no worker 'w7'"),
        ({"rank": 9}, "there is no rank '9'"),
    ],
)
def test_what_is_not_there_is_named(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownName, match=message.replace("?", r"\?")):
        reader_of(LogsOnly(), **chosen).check(job_of({"train": ["w0"]}))
