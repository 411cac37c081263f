"""Reads what requests carry and says in one sentence what is wrong with it."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

from pydantic import ValidationError

from plait.errors import PlaitError
from plait.schedule.domain import Deed
from plait.spec.job import Job
from plait.wire import Codec
from plait.words import did_you_mean

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""What job, task and worker names may be: they become names of directories."""
T = TypeVar("T")


class Refused(PlaitError):
    """A request cannot be served; ``status`` is the HTTP status."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        self.status = int(status)
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """Body of ``POST /v1/jobs``."""

    job: Job
    directory: str
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Body of ``POST /v1/plan``."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRequest:
    """Body of ``POST /v1/jobs/{job}/resize``."""

    task: str
    min: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectRequest:
    """Body of ``POST /v1/jobs/{job}/inject``."""

    task: str
    worker: str
    deed: Deed


class BodyReader(Generic[T]):
    """Decodes bodies of one kind."""

    def __init__(self, form: type[T]) -> None:
        self._codec: Codec[T] = Codec(form)

    def read(self, body: bytes) -> T:
        """Returns the body; raises Refused with the first thing that is wrong in it."""
        try:
            return self._codec.decode(body)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the body"
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"{place}: {first['msg']}") from None


def check_job(job: Job) -> None:
    """Raises Refused where a job that did not come through ``plait validate`` would do harm."""
    names = [("name", job.name), *((f"tasks.{index}.name", task.name) for index, task in enumerate(job.tasks))]
    for key, name in names:
        if _NAME.fullmatch(name) is None:
            raise _unprocessable(f"{key}: may hold letters, digits, '-', '_' and '.' only; got {name!r}")
    if not job.tasks:
        raise _unprocessable("tasks: a job needs at least one task")
    known = {task.name for task in job.tasks}
    if len(known) != len(job.tasks):
        raise _unprocessable("tasks: two tasks have the same name")
    for task in job.tasks:
        if not task.command:
            raise _unprocessable(f"task {task.name!r}: its command is empty")
        if not 1 <= task.workers.min <= task.workers.max:
            raise _unprocessable(
                f"task {task.name!r}: workers needs 1 <= min <= max; got {task.workers.min} and {task.workers.max}"
            )
        for need in task.needs:
            if need not in known or need == task.name:
                raise _unprocessable(f"task {task.name!r} needs {need!r}{did_you_mean(need, known - {task.name})}")
    _check_acyclic({task.name: task.needs for task in job.tasks})


def digest_of(request: SubmitRequest) -> str:
    """Returns what tells two submissions apart that came with the same request id."""
    codec: Codec[SubmitRequest] = Codec(SubmitRequest)
    return hashlib.sha256(codec.encode(request)).hexdigest()


def is_name(text: str) -> bool:
    """Returns whether this may be part of a path."""
    return _NAME.fullmatch(text) is not None


def number_of(query: Mapping[str, Any], key: str, default: int) -> int:
    """Returns a whole number of the query that is not negative."""
    text = str(query.get(key, default))
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{key}: expected a whole number of at least 0; got {text!r}")
    return int(text)


def _unprocessable(message: str) -> Refused:
    return Refused(HTTPStatus.UNPROCESSABLE_ENTITY, message)


def _check_acyclic(needs: Mapping[str, tuple[str, ...]]) -> None:
    left = dict(needs)
    while left:
        ready = [name for name, wanted in left.items() if not any(need in left for need in wanted)]
        if not ready:
            raise _unprocessable(f"tasks: these wait for each other: {', '.join(sorted(left))}")
        for name in ready:
            del left[name]
