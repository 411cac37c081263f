"""What each request of the API does."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from plait.controller.answers import ControllerAnswer, NodeAnswer, StatusAnswer
from plait.controller.journal import RECORD, Record, Submission
from plait.controller.logs import read_chunk
from plait.controller.orders import log_directory
from plait.controller.plan import plan_answer
from plait.controller.requests import (
    BodyReader,
    InjectRequest,
    PlanRequest,
    Refused,
    ResizeRequest,
    SubmitRequest,
    check_job,
    digest_of,
    is_name,
    number_of,
)
from plait.controller.views import explain_answer, job_answer, node_answer, progress_answer
from plait.controller.writer import Proposal, View
from plait.schedule.events import FaultInjected, JobCancelled, JobSubmitted, NodeDrained, NodeResumed, ResizeRequested
from plait.spec.job import WorkerRange
from plait.words import did_you_mean

if TYPE_CHECKING:
    from plait.controller.service import Controller

EVENTS_LIMIT: Final = 500
_SUBMIT: BodyReader[SubmitRequest] = BodyReader(SubmitRequest)
_PLAN: BodyReader[PlanRequest] = BodyReader(PlanRequest)
_INJECT: BodyReader[InjectRequest] = BodyReader(InjectRequest)
_RESIZE: BodyReader[ResizeRequest] = BodyReader(ResizeRequest)


class Endpoints:
    """The requests of one controller."""

    def __init__(self, controller: "Controller") -> None:
        self._controller = controller
        self._writer = controller.writer

    async def status(self, _: Request) -> Response:
        """GET /v1/status."""
        controller, state = self._controller, self._writer.state
        about = ControllerAnswer(
            pid=controller.pid,
            started_at_s=controller.started_at_s,
            policy=controller.cluster.policy.name,
            engine=controller.cluster.engine,
            limitations=[*controller.limitations, *controller.watch.pending.values()],
            last_event=self._writer.last_id,
        )
        jobs = [job_answer(state, self._writer.ledger, job_id) for job_id in state.jobs]
        return JSONResponse(StatusAnswer(controller=about, nodes=self._nodes(), jobs=jobs))

    async def submit(self, request: Request) -> Response:
        """POST /v1/jobs: answers only once the job is durable."""
        body = _SUBMIT.read(await request.body())
        check_job(body.job)
        if not body.request_id or not Path(body.directory).is_absolute():
            raise Refused(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"directory: expected an absolute path, and request_id some text; got {body.directory!r} and "
                f"{body.request_id!r}",
            )
        digest = digest_of(body)
        record = await self._writer.put(partial(_propose_job, body, digest))
        if record is not None:
            assert isinstance(record.event, JobSubmitted)
            return JSONResponse({"job_id": record.event.job_id, "is_new": True}, HTTPStatus.CREATED)
        job_id = self._writer.ledger.job_of_request(body.request_id)
        assert job_id is not None
        if self._writer.ledger.submissions[job_id].digest != digest:
            raise Refused(HTTPStatus.CONFLICT, f"request {body.request_id!r} submitted another job before: {job_id}")
        return JSONResponse({"job_id": job_id, "is_new": False}, HTTPStatus.OK)

    async def job(self, request: Request) -> Response:
        """GET /v1/jobs/{job}."""
        return self._job(self._known_job(request))

    async def cancel(self, request: Request) -> Response:
        """POST /v1/jobs/{job}/cancel; a job that has ended stays as it is."""
        job_id = self._known_job(request)

        def propose(view: View) -> Proposal | None:
            if view.state.jobs[job_id].ended_at_s is not None:
                return None
            return Proposal(event=JobCancelled(id=view.id, at_s=view.at_s, job_id=job_id))

        await self._writer.put(propose)
        return self._job(job_id)

    async def resize(self, request: Request) -> Response:
        """POST /v1/jobs/{job}/resize."""
        job_id = self._known_job(request)
        body = _RESIZE.read(await request.body())
        self._known_task(job_id, body.task)
        if not 1 <= body.min <= body.max:
            raise Refused(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"workers: needs 1 <= min <= max; got {body.min} and {body.max}"
            )
        workers = WorkerRange(min=body.min, max=body.max)

        def propose(view: View) -> Proposal | None:
            if view.state.jobs[job_id].ended_at_s is not None:
                return None
            event = ResizeRequested(id=view.id, at_s=view.at_s, job_id=job_id, task=body.task, workers=workers)
            return Proposal(event=event)

        if await self._writer.put(propose) is None:
            raise Refused(HTTPStatus.CONFLICT, f"job {job_id!r} has ended and cannot be resized")
        return self._job(job_id)

    async def inject(self, request: Request) -> Response:
        """POST /v1/jobs/{job}/inject: a drill, where the cluster file allows them."""
        job_id = self._known_job(request)
        body = _INJECT.read(await request.body())
        if not self._controller.cluster.drills:
            raise Refused(HTTPStatus.FORBIDDEN, "drills are off; the cluster file turns them on by `drills: true`")
        self._known_task(job_id, body.task)

        def propose(view: View) -> Proposal | None:
            attempt_id = view.state.jobs[job_id].tasks[body.task].attempt_id
            if attempt_id is None or view.ledger.order(attempt_id, body.worker) is None:
                return None
            event = FaultInjected(
                id=view.id, at_s=view.at_s, attempt_id=attempt_id, worker_id=body.worker, deed=body.deed
            )
            return Proposal(event=event)

        if await self._writer.put(propose) is None:
            attempt_id = self._writer.state.jobs[job_id].tasks[body.task].attempt_id
            running = self._writer.ledger.of_attempt(attempt_id) if attempt_id is not None else {}
            near = did_you_mean(body.worker, running) or f"; running are {', '.join(running) or 'none'}"
            raise Refused(HTTPStatus.NOT_FOUND, f"task {body.task!r} has no running worker {body.worker!r}{near}")
        return self._job(job_id)

    async def explain(self, request: Request) -> Response:
        """GET /v1/jobs/{job}/explain."""
        job_id = self._known_job(request)
        # The forecast plays the scheduler on, which takes a while on a large cluster; the state itself never changes.
        return JSONResponse(await asyncio.to_thread(explain_answer, self._writer.state, job_id))

    async def progress(self, request: Request) -> Response:
        """GET /v1/jobs/{job}/progress."""
        job_id = self._known_job(request)
        state, ledger = self._writer.state, self._writer.ledger
        progress = [progress_answer(state, ledger, latest) for latest in self._controller.board.of_job(job_id)]
        return JSONResponse({"job_id": job_id, "progress": progress})

    async def logs(self, request: Request) -> Response:
        """GET /v1/jobs/{job}/logs."""
        job_id = self._known_job(request)
        query = request.query_params
        task = query.get("task") or next(iter(self._writer.state.jobs[job_id].tasks))
        self._known_task(job_id, task)
        newest = self._writer.ledger.starts.get(f"{job_id}/{task}", 0)
        gang = self._writer.ledger.gangs.get(f"{job_id}/{task}")
        default = int(gang.attempt_id.rpartition("/")[2]) if gang is not None else newest
        attempt = number_of(query, "attempt", default)
        offset = number_of(query, "offset", 0)
        worker = query.get("worker") or "w0"
        if not is_name(worker):
            raise Refused(HTTPStatus.NOT_FOUND, f"task {task!r} has no worker {worker!r}")
        path = log_directory(self._controller.state_directory, f"{job_id}/{task}/{attempt}") / f"{worker}.log"
        chunk = await asyncio.to_thread(read_chunk, path, offset)
        return PlainTextResponse(chunk.text, headers={"X-Next-Offset": str(chunk.next_offset)})

    async def nodes(self, _: Request) -> Response:
        """GET /v1/nodes."""
        return JSONResponse({"nodes": self._nodes()})

    async def drain(self, request: Request) -> Response:
        """POST /v1/nodes/{node}/drain."""
        node = self._known_node(request)
        await self._writer.put(lambda view: Proposal(event=NodeDrained(id=view.id, at_s=view.at_s, node=node)))
        return JSONResponse(self._node(node))

    async def resume(self, request: Request) -> Response:
        """POST /v1/nodes/{node}/resume."""
        node = self._known_node(request)
        await self._writer.put(lambda view: Proposal(event=NodeResumed(id=view.id, at_s=view.at_s, node=node)))
        return JSONResponse(self._node(node))

    async def plan(self, request: Request) -> Response:
        """POST /v1/plan: what would happen, on a state that is thrown away."""
        body = _PLAN.read(await request.body())
        check_job(body.job)
        return JSONResponse(plan_answer(self._writer, body.job))

    async def events(self, request: Request) -> Response:
        """GET /v1/events."""
        after = number_of(request.query_params, "after", 0)
        records = await self._writer.read(after, EVENTS_LIMIT)
        return JSONResponse(
            {"events": [_told(record) for record in records], "next": records[-1].event.id if records else after}
        )

    def _job(self, job_id: str) -> Response:
        return JSONResponse(job_answer(self._writer.state, self._writer.ledger, job_id))

    def _nodes(self) -> list[NodeAnswer]:
        return [self._node(node) for node in self._writer.state.nodes]

    def _node(self, node: str) -> NodeAnswer:
        silent_s = self._controller.switchboard.silent_s(node)
        return node_answer(self._writer.state, self._writer.ledger, node, silent_s)

    def _known_job(self, request: Request) -> str:
        return _known("job", request.path_params["job"], self._writer.state.jobs)

    def _known_node(self, request: Request) -> str:
        return _known("node", request.path_params["node"], self._writer.state.nodes)

    def _known_task(self, job_id: str, task: str) -> str:
        return _known(f"task in job {job_id!r} called", task, self._writer.state.jobs[job_id].tasks)


def _known(kind: str, name: str, known: Mapping[str, object]) -> str:
    if name not in known:
        raise Refused(HTTPStatus.NOT_FOUND, f"there is no {kind} {name!r}{did_you_mean(name, known)}")
    return name


def _propose_job(body: SubmitRequest, digest: str, view: View) -> Proposal | None:
    if view.ledger.job_of_request(body.request_id) is not None:
        return None
    event = JobSubmitted(id=view.id, at_s=view.at_s, job_id=view.ledger.next_job_id(body.job.name), job=body.job)
    note = Submission(request_id=body.request_id, directory=body.directory, digest=digest)
    return Proposal(event=event, note=note)


def _told(record: Record) -> Any:
    """Returns a record for the world: without where it came from, and without the values of environments."""
    told = json.loads(RECORD.encode(record))
    del told["note"]
    for task in told["event"].get("job", {}).get("tasks", ()):
        task["environment"] = [[name, "(hidden)"] for name, _ in task["environment"]]
    return told
