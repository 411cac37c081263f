"""The HTTP API over real loopback: who is let in, what is said, what is refused and how."""

import asyncio
import http.client
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from plait.agent.messages import StartWorker
from plait.controller.client import Client, RequestRefused
from plait.controller.endpoint import read_endpoint, read_token
from plait.controller.orders import log_directory
from plait.errors import ControllerUnreachable

if TYPE_CHECKING:
    from tests.integration.controller.conftest import Stage

GETS = ("status", "nodes", "jobs/digits-1", "jobs/digits-1/explain", "jobs/digits-1/progress", "events?after=0")
GETS_LOGS = "jobs/digits-1/logs?task=train"
POSTS = (
    "jobs", "plan", "jobs/digits-1/cancel", "jobs/digits-1/resize", "jobs/digits-1/inject",
    "nodes/n0/drain", "nodes/n0/resume",
)  # fmt: skip


def exchange(
    stage: "Stage", method: str, path: str, body: bytes | None = None, token: str | None = None
) -> tuple[int, Any]:
    """Returns status and decoded body; without a token none is sent."""
    address = urlsplit(read_endpoint(stage.state).api)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connection.request(method, f"/v1/{path}", body, headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, json.loads(data)


async def test_nothing_is_told_or_done_without_the_token(stage: "Stage") -> None:
    async with stage.controller_at(stage.state) as controller:
        await stage.agent()
        await asyncio.to_thread(Client(stage.state).submit, stage.job(), "/work")
        before = controller.writer.state
        right = read_token(stage.state)
        for token in (None, "", "guess", right[:-1], right + "x"):
            for method, paths in (("GET", (*GETS, GETS_LOGS)), ("POST", POSTS)):
                for path in paths:
                    status, answer = await asyncio.to_thread(exchange, stage, method, path, b"{}", token)
                    assert (status, set(answer)) == (401, {"error"}), path
        after = controller.writer.state
        assert (after.jobs, after.nodes, after.attempts) == (before.jobs, before.nodes, before.attempts)
        for path in GETS:
            status, answer = await asyncio.to_thread(exchange, stage, "GET", path, None, right)
            assert status == 200, answer


async def test_the_same_request_is_the_same_job_also_after_a_restart(stage: "Stage") -> None:
    client = Client(stage.state)
    async with stage.controller_at(stage.state):
        first = await asyncio.to_thread(lambda: client.submit(stage.job(), "/work", request_id="r1"))
        again = await asyncio.to_thread(lambda: client.submit(stage.job(), "/work", request_id="r1"))
        assert (first["job_id"], first["is_new"]) == ("digits-1", True)
        assert (again["job_id"], again["is_new"]) == ("digits-1", False)
    async with stage.controller_at(stage.state):
        again = await asyncio.to_thread(lambda: client.submit(stage.job(), "/work", request_id="r1"))
        assert (again["job_id"], again["is_new"]) == ("digits-1", False)
        other = await asyncio.to_thread(lambda: client.submit(stage.job(), "/work", request_id="r2"))
        assert other["job_id"] == "digits-2"
        with pytest.raises(RequestRefused, match="'r1' submitted another job before: digits-1") as refused:
            await asyncio.to_thread(lambda: client.submit(stage.job("other"), "/work", request_id="r1"))
        assert refused.value.status == 409


async def test_many_submissions_at_once_are_all_answered_with_jobs_of_their_own(stage: "Stage") -> None:
    client = Client(stage.state)
    async with stage.controller_at(stage.state) as controller:
        answers = await asyncio.gather(
            *(asyncio.to_thread(client.submit, stage.job(), "/work") for _ in range(20)),
        )
        assert {answer["job_id"] for answer in answers} == {f"digits-{number}" for number in range(1, 21)}
        assert len(controller.writer.state.jobs) == 20


async def test_refusals_say_what_is_wrong_in_one_sentence(stage: "Stage") -> None:
    client = Client(stage.state)
    async with stage.controller_at(stage.state):
        await stage.agent()
        await asyncio.to_thread(client.submit, stage.job(), "/work")
        token = read_token(stage.state)
        submission = {"job": json.loads(json.dumps({"name": "x", "tasks": []})), "directory": "/", "request_id": "r"}
        cases: list[tuple[str, str, object, int, str]] = [
            ("GET", "jobs/digit-1", None, 404, "no job 'digit-1'; did you mean 'digits-1'?"),
            ("POST", "jobs/nope/cancel", {}, 404, "no job 'nope'"),
            ("POST", "nodes/n1/drain", {}, 404, "there is no node 'n1'"),
            ("GET", "jobs/digits-1/logs?task=trian", None, 404, "did you mean 'train'?"),
            ("GET", "jobs/digits-1/logs?task=train&offset=-1", None, 400, "offset: expected a whole number"),
            ("GET", "jobs/digits-1/logs?task=train&worker=..%2F..%2Ftoken", None, 404, "no worker '../../token'"),
            ("GET", "jobs/digits-1/logs?task=..%2F..", None, 404, "no task in job 'digits-1' called '../..'"),
            ("GET", "events?after=x", None, 400, "after: expected a whole number"),
            ("GET", "elsewhere", None, 404, "nothing at /v1/elsewhere"),
            ("DELETE", "jobs/digits-1", None, 405, "does not take DELETE"),
            ("POST", "jobs", submission, 422, "a job needs at least one task"),
            ("POST", "jobs", {"job": {"name": 3}}, 422, "job.name"),
            ("POST", "jobs/digits-1/resize", {"task": "train", "min": 3, "max": 2}, 422, "1 <= min <= max"),
            ("POST", "jobs/digits-1/resize", {"task": "train", "min": 3}, 422, "max"),
            ("POST", "jobs/digits-1/inject", {"task": "train", "worker": "w0", "deed": "kill"}, 403, "`drills: true`"),
            ("POST", "jobs/digits-1/inject", {"task": "train", "worker": "w0", "deed": "hurt"}, 422, "deed"),
            ("POST", "jobs", "x" * (5 * 2**20), 413, "larger than 4194304 bytes"),
        ]
        for method, path, body, expected, words in cases:
            data = None if body is None else json.dumps(body).encode()
            status, answer = await asyncio.to_thread(exchange, stage, method, path, data, token)
            assert status == expected, (path, answer)
            assert words in answer["error"], answer
            assert set(answer) == {"error"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "../../etc"}, "name: may hold"),
        ({"name": ""}, "name: may hold"),
        ({"needs": ("trian",)}, "needs 'trian'"),
        ({"needs": ("train",)}, "needs 'train'"),
        ({"command": ()}, "its command is empty"),
    ],
)
async def test_jobs_that_would_do_harm_are_refused_and_not_kept(
    stage: "Stage", change: dict[str, Any], words: str
) -> None:
    good = stage.job()
    bad = replace(good, tasks=(replace(good.tasks[0], **change),))
    async with stage.controller_at(stage.state) as controller:
        with pytest.raises(RequestRefused, match=words) as refused:
            await asyncio.to_thread(Client(stage.state).submit, bad, "/work")
        assert refused.value.status == 422
        with pytest.raises(RequestRefused, match="absolute path"):
            await asyncio.to_thread(Client(stage.state).submit, good, "somewhere")
        assert not controller.writer.state.jobs


async def test_a_plan_changes_nothing_and_says_where_and_why(stage: "Stage") -> None:
    client = Client(stage.state)
    async with stage.controller_at(stage.state) as controller:
        agent = await stage.agent(slots=2)
        before = controller.writer.state
        fits = await asyncio.to_thread(client.plan, stage.job(workers=2))
        assert fits["tasks"][0]["starts_now"]
        assert {worker["node"] for worker in fits["tasks"][0]["workers"]} == {"n0"}
        too_large = await asyncio.to_thread(client.plan, stage.job(workers=3))
        assert not too_large["tasks"][0]["starts_now"]
        assert too_large["tasks"][0]["reasons"]
        assert controller.writer.state.jobs == before.jobs
        assert agent.orders() == []


async def test_a_drained_node_takes_no_work_until_it_is_resumed(stage: "Stage") -> None:
    client = Client(stage.state)
    async with stage.controller_at(stage.state):
        agent = await stage.agent()
        assert (await asyncio.to_thread(client.drain, "n0"))["state"] == "drained"
        await asyncio.to_thread(client.submit, stage.job(), "/work")
        assert (await asyncio.to_thread(client.job, "digits-1"))["state"] == "waiting"
        assert (await asyncio.to_thread(client.explain, "digits-1"))["tasks"][0]["waiting"]
        assert agent.orders() == []
        assert (await asyncio.to_thread(client.resume, "n0"))["state"] == "up"
        await agent.next(StartWorker)


async def test_logs_come_in_pieces_that_never_cut_a_character(stage: "Stage") -> None:
    client = Client(stage.state)
    async with stage.controller_at(stage.state):
        agent = await stage.agent()
        await asyncio.to_thread(client.submit, stage.job(), "/work")
        order = await agent.next(StartWorker)
        empty = await asyncio.to_thread(lambda: client.logs("digits-1", task="train", worker="w0"))
        assert (empty.text, empty.next_offset) == ("", 0)
        path = log_directory(stage.state, order.attempt_id) / "w0.log"
        path.parent.mkdir(parents=True)
        text = "x" + "größer 训练 \N{ROCKET}\n" * 30_000
        path.write_text(text, encoding="utf-8")
        pieces, offset = [], 0
        while True:
            chunk = await asyncio.to_thread(partial(client.logs, "digits-1", task="train", offset=offset))
            if not chunk.text:
                break
            pieces.append(chunk.text)
            offset = chunk.next_offset
        assert "".join(pieces) == text
        assert len(pieces) > 2
        assert offset == len(text.encode())


async def test_no_secret_leaves_the_controller(stage: "Stage") -> None:
    client = Client(stage.state)
    good = stage.job()
    secret = replace(good, tasks=(replace(good.tasks[0], environment=(("API_KEY", "hunter2"),)),))
    async with stage.controller_at(stage.state):
        await stage.agent()
        await asyncio.to_thread(lambda: client.submit(secret, "/work", request_id="my-request"))
        token = read_token(stage.state)
        for path in (*GETS, "events"):
            _, answer = await asyncio.to_thread(exchange, stage, "GET", path, None, token)
            text = json.dumps(answer)
            assert "hunter2" not in text
            assert token not in text
        assert (stage.state / "token").stat().st_mode & 0o077 == 0


async def test_events_page_through_everything(stage: "Stage") -> None:
    client = Client(stage.state)
    async with stage.controller_at(stage.state):
        await stage.agent()
        await asyncio.to_thread(client.submit, stage.job(), "/work")
        answer = await asyncio.to_thread(client.events, 0)
        kinds = [entry["event"]["kind"] for entry in answer["events"]]  # type: ignore[index]
        assert {"cluster_configured", "node_joined", "job_submitted"} <= set(kinds)
        started = [entry for entry in answer["events"] if entry["commands"]]
        assert started[0]["commands"][0]["kind"] == "start_task"  # type: ignore[index]
        rest = await asyncio.to_thread(client.events, answer["next"])
        assert all(entry["event"]["id"] > answer["next"] for entry in rest["events"])  # type: ignore[index]


async def test_a_controller_that_is_away_is_said_so_and_a_submission_waits_for_it(stage: "Stage") -> None:
    client = Client(stage.state)
    with pytest.raises(ControllerUnreachable, match="no controller has run"):
        await asyncio.to_thread(client.status)
    async with stage.controller_at(stage.state):
        status = await asyncio.to_thread(client.status)
        assert status["controller"]["limitations"] == ["nothing is real here"]
    with pytest.raises(ControllerUnreachable, match="does not answer"):
        await asyncio.to_thread(client.status)
    waiting = asyncio.create_task(asyncio.to_thread(lambda: client.submit(stage.job(), "/work", patience_s=20.0)))
    async with stage.controller_at(stage.state):
        assert (await waiting)["job_id"] == "digits-1"
