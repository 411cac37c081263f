"""The HTTP API: JSON on loopback behind a bearer token."""

import asyncio
import contextlib
import hmac
import logging
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from plait.controller.requests import Refused
from plait.errors import PlaitError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from plait.controller.service import Controller

log = logging.getLogger(__name__)

BODY_BYTES: Final = 4 * 2**20
"""No request is larger; a job file of a thousand tasks is about 1 MiB."""


class _Server(uvicorn.Server):
    """Leaves signals to the controller and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ApiServer:
    """Serves the API of one controller on a socket that is bound already."""

    def __init__(self, controller: "Controller", token: str, listener: socket.socket) -> None:
        application = build(controller, token)
        config = uvicorn.Config(
            application, lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=2
        )
        self._server = _Server(config)
        self._listener = listener
        self._has_ended = asyncio.Event()

    async def run(self) -> None:
        """Serves until ``close``."""
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            self._has_ended.set()

    async def ready(self) -> None:
        """Returns once requests are answered."""
        await self._server.is_up.wait()

    async def close(self) -> None:
        """Answers what is under way and stops."""
        self._server.should_exit = True
        if self._server.started:
            await self._has_ended.wait()


def build(controller: "Controller", token: str) -> Starlette:
    """Returns the application."""
    from plait.controller.endpoints import Endpoints

    endpoints = Endpoints(controller)
    routes = [
        Route("/v1/status", endpoints.status, methods=["GET"]),
        Route("/v1/jobs", endpoints.submit, methods=["POST"]),
        Route("/v1/jobs/{job}", endpoints.job, methods=["GET"]),
        Route("/v1/jobs/{job}/cancel", endpoints.cancel, methods=["POST"]),
        Route("/v1/jobs/{job}/resize", endpoints.resize, methods=["POST"]),
        Route("/v1/jobs/{job}/inject", endpoints.inject, methods=["POST"]),
        Route("/v1/jobs/{job}/explain", endpoints.explain, methods=["GET"]),
        Route("/v1/jobs/{job}/progress", endpoints.progress, methods=["GET"]),
        Route("/v1/jobs/{job}/logs", endpoints.logs, methods=["GET"]),
        Route("/v1/nodes", endpoints.nodes, methods=["GET"]),
        Route("/v1/nodes/{node}/drain", endpoints.drain, methods=["POST"]),
        Route("/v1/nodes/{node}/resume", endpoints.resume, methods=["POST"]),
        Route("/v1/plan", endpoints.plan, methods=["POST"]),
        Route("/v1/events", endpoints.events, methods=["GET"]),
    ]
    application = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _say_http, Refused: _say_refused, Exception: _say_failed},
    )
    application.add_middleware(_Guard, token=token)
    return application


class _Guard:
    """Lets only the holder of the token in, and no request that is too large."""

    def __init__(self, app: "ASGIApp", token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            answer = _error(
                401, "this request needs the header 'Authorization: Bearer TOKEN' with the controller's token"
            )
            answer.headers["WWW-Authenticate"] = "Bearer"
            await answer(scope, receive, send)
            return
        body = await _whole_body(receive)
        if body is None:
            await _error(413, f"the request is larger than {BODY_BYTES} bytes")(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)


async def _whole_body(receive: "Receive") -> bytes | None:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: "Receive") -> "Receive":
    messages: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def again() -> "Message":
        return next(messages, None) or await receive()

    return again


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status)


async def _say_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {
        404: f"there is nothing at {request.url.path}",
        405: f"{request.url.path} does not take {request.method}",
    }
    return _error(error.status_code, messages.get(error.status_code, str(error.detail)))


async def _say_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _error(error.status, str(error))


async def _say_failed(request: Request, error: Exception) -> Response:
    if isinstance(error, PlaitError):
        return _error(409, str(error))
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _error(500, f"{request.method} {request.url.path} failed inside the controller; its log says why")
