"""A client of the controller's HTTP API on the standard library alone, so that the command line starts fast."""

import http.client
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

from plait.controller.answers import (
    EventsAnswer,
    ExplainAnswer,
    JobAnswer,
    NodeAnswer,
    PlanAnswer,
    ProgressAnswer,
    ProgressesAnswer,
    StatusAnswer,
    SubmitAnswer,
)
from plait.controller.endpoint import read_endpoint, read_token
from plait.errors import ControllerUnreachable, PlaitError
from plait.spec.job import Job

RETRY_PAUSE_S: Final = 0.1


class RequestRefused(PlaitError):
    """The controller answered and said no; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of a worker's log; ask again from ``next_offset`` (in bytes)."""

    text: str
    next_offset: int


class Client:
    """Calls the controller of a state directory; finds it anew for every call, so restarts do not matter.

    Args:
        state_directory: Where the controller keeps ``endpoint.json`` and ``token``.
        timeout_s: For one HTTP exchange.
        patience_s: How long a call is tried again while the controller is away.
    """

    def __init__(self, state_directory: Path | str, *, timeout_s: float = 10.0, patience_s: float = 0.0) -> None:
        self._directory = Path(state_directory)
        self._timeout_s = timeout_s
        self._patience_s = patience_s

    def status(self) -> StatusAnswer:
        """Returns the controller, all nodes and all jobs."""
        return cast("StatusAnswer", self._call("GET", "/v1/status"))

    def submit(
        self, job: Job, directory: Path | str, *, request_id: str | None = None, patience_s: float = 10.0
    ) -> SubmitAnswer:
        """Submits a job; it is durable on return.

        Tried again with the same request id for ``patience_s`` while the controller restarts, so the job is accepted
        exactly once.
        """
        from plait.wire import Codec

        codec: Codec[Job] = Codec(Job)
        body = {
            "job": json.loads(codec.encode(job)),
            "directory": str(directory),
            "request_id": request_id or uuid.uuid4().hex,
        }
        return cast("SubmitAnswer", self._call("POST", "/v1/jobs", body, patience_s=patience_s))

    def job(self, job_id: str) -> JobAnswer:
        """Returns one job."""
        return cast("JobAnswer", self._call("GET", f"/v1/jobs/{_part(job_id)}"))

    def cancel(self, job_id: str) -> JobAnswer:
        """Asks for the end of a job; returns it as it is now."""
        return cast("JobAnswer", self._call("POST", f"/v1/jobs/{_part(job_id)}/cancel", {}))

    def resize(self, job_id: str, task: str, fewest: int, most: int) -> JobAnswer:
        """Gives a task another elastic range."""
        body = {"task": task, "min": fewest, "max": most}
        return cast("JobAnswer", self._call("POST", f"/v1/jobs/{_part(job_id)}/resize", body))

    def inject(self, job_id: str, task: str, worker: str, deed: str) -> JobAnswer:
        """Has a fault done to a running worker, where the cluster file allows drills."""
        body = {"task": task, "worker": worker, "deed": deed}
        return cast("JobAnswer", self._call("POST", f"/v1/jobs/{_part(job_id)}/inject", body))

    def nodes(self) -> list[NodeAnswer]:
        """Returns all nodes."""
        return cast("list[NodeAnswer]", self._call("GET", "/v1/nodes")["nodes"])

    def drain(self, node: str) -> NodeAnswer:
        """Sends no new work to the node; elastic work leaves it."""
        return cast("NodeAnswer", self._call("POST", f"/v1/nodes/{_part(node)}/drain", {}))

    def resume(self, node: str) -> NodeAnswer:
        """Lets a drained node take work again."""
        return cast("NodeAnswer", self._call("POST", f"/v1/nodes/{_part(node)}/resume", {}))

    def explain(self, job_id: str) -> ExplainAnswer:
        """Returns why the job waits, why it was placed so, and why its split is what it is."""
        return cast("ExplainAnswer", self._call("GET", f"/v1/jobs/{_part(job_id)}/explain"))

    def progress(self, job_id: str) -> list[ProgressAnswer]:
        """Returns the newest progress of each attempt of the job that reported any."""
        answer = cast("ProgressesAnswer", self._call("GET", f"/v1/jobs/{_part(job_id)}/progress"))
        return answer["progress"]

    def plan(self, job: Job) -> PlanAnswer:
        """Returns what would run where if the job were submitted now; changes nothing."""
        from plait.wire import Codec

        codec: Codec[Job] = Codec(Job)
        return cast("PlanAnswer", self._call("POST", "/v1/plan", {"job": json.loads(codec.encode(job))}))

    def events(self, after: int = 0) -> EventsAnswer:
        """Returns journal records after this id, oldest first."""
        return cast("EventsAnswer", self._call("GET", f"/v1/events?after={after}"))

    def logs(
        self, job_id: str, *, task: str, worker: str | None = None, attempt: int | None = None, offset: int = 0
    ) -> LogChunk:
        """Returns a piece of a worker's log from ``offset`` bytes; the newest attempt unless told otherwise."""
        query: dict[str, str] = {"task": task, "offset": str(offset)}
        if worker is not None:
            query["worker"] = worker
        if attempt is not None:
            query["attempt"] = str(attempt)
        status, headers, body = self._exchange("GET", f"/v1/jobs/{_part(job_id)}/logs?{urlencode(query)}", None)
        if status != http.HTTPStatus.OK:
            raise RequestRefused(status, _error_of(status, body))
        return LogChunk(text=body.decode("utf-8", "replace"), next_offset=int(headers.get("x-next-offset", offset)))

    def _call(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, patience_s: float | None = None
    ) -> dict[str, Any]:
        deadline = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        while True:
            try:
                status, _, data = self._exchange(method, path, body)
            except ControllerUnreachable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(RETRY_PAUSE_S)
                continue
            if status >= http.HTTPStatus.BAD_REQUEST:
                raise RequestRefused(status, _error_of(status, data))
            return cast("dict[str, Any]", json.loads(data))

    def _exchange(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        api = read_endpoint(self._directory).api
        token = read_token(self._directory)
        address = urlsplit(api)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=self._timeout_s)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ControllerUnreachable(
                f"the controller at {api} does not answer: {error or type(error).__name__}"
            ) from (error)
        finally:
            connection.close()
        return response.status, {key.lower(): value for key, value in response.getheaders()}, data


def _part(text: str) -> str:
    return quote(text, safe="")


def _error_of(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the controller answered with status {status}"
