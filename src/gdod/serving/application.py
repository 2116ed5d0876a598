"""The addresses of the server: /predict, /health and /metrics, and the limits of a request."""

import asyncio
import json
import sys
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from gdod.errors import InputError
from gdod.serving.batching import Batching
from gdod.serving.json_rows import rows_of, table_of
from gdod.serving.metrics import CONTENT_TYPE, Metrics
from gdod.training.record import finite
from gdod.training.run import Run

_ADDRESSES = "there are POST /predict, GET /health and GET /metrics"


@dataclass(frozen=True)
class Limits:
    """What a request may take."""

    body: int = 8_000_000
    """The most bytes of a body."""
    rows: int = 10_000
    """The most rows of a request, and of a call of the model."""
    seconds: float = 10.0
    """The longest time of a request, from its head to its answer."""
    requests: int = 128
    """The most requests to /predict that are under way at once."""


def about(run: Run) -> dict[str, Any]:
    """Return what /health says of a run: where it lies, its tasks, the columns it takes."""
    tasks = []
    for task in run.tasks:
        classes = run.encoder.classes.get(task.name)
        tasks.append({"name": task.name, "kind": task.kind, **({"classes": list(classes)} if classes else {})})
    return {"run": str(run.folder.path), "step": run.step, "tasks": tasks, "columns": list(run.encoder.inputs)}


class Application:
    """Answers requests for one run."""

    def __init__(self, run: Run, limits: Limits) -> None:
        self.run, self.limits, self.metrics = run, limits, Metrics()
        self.batching = Batching(run, self.metrics, limits.rows)
        self.under_way, self.answered = 0, 0
        self._about = {"status": "ok", **about(run)}

    def asgi(self) -> Starlette:
        """Return the application as a server takes it."""
        application = Starlette(
            routes=[
                Route("/predict", self.predict, methods=["POST"]),
                Route("/health", self.health),
                Route("/metrics", self.show_metrics),
            ],
            exception_handlers={HTTPException: _refused, Exception: _failed},
            lifespan=self._lifespan,
        )
        application.router.redirect_slashes = False  # /predict/ is no address, and no answer leads elsewhere
        return application

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with self.batching.working():
            yield

    async def health(self, request: Request) -> Response:
        return _json(self._about)

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def predict(self, request: Request) -> Response:
        start, status = time.perf_counter(), 500
        self.metrics.under_way.inc()
        self.under_way += 1
        try:
            response = await self._predict(request)
            status = response.status_code
            return response
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            self.under_way -= 1
            self.answered += 1
            self.metrics.under_way.dec()
            self.metrics.requests.labels(str(status)).inc()
            self.metrics.request_seconds.observe(time.perf_counter() - start)

    async def _predict(self, request: Request) -> Response:
        limits = self.limits
        if self.under_way > limits.requests:
            raise HTTPException(
                503, f"{limits.requests:,} requests are under way already; try again", {"retry-after": "1"}
            )
        body = None
        try:
            async with asyncio.timeout(limits.seconds):
                body = await self._body(request)
                try:
                    rows = rows_of(body)
                except InputError as error:
                    raise HTTPException(400, str(error)) from error
                if len(rows) > limits.rows:
                    raise HTTPException(413, f"the body has {len(rows):,} rows; expected at most {limits.rows:,}")
                table = table_of(self.run, rows)
                predictions = await self.batching.predict(table) if rows else []
        except InputError as error:
            raise HTTPException(422, str(error)) from error
        except TimeoutError:
            if body is None:
                raise HTTPException(408, f"the body did not come within {limits.seconds:g} s") from None
            raise HTTPException(504, f"there was no answer within {limits.seconds:g} s; send fewer rows") from None
        return _json({"predictions": predictions, "notes": table.notes})

    async def _body(self, request: Request) -> bytes:
        """Return the body; raise as soon as it is known to be too long."""
        if (coding := request.headers.get("content-encoding", "identity")) != "identity":
            raise HTTPException(415, f"the body is packed ({coding}); expected JSON as it is")
        too_long = HTTPException(413, f"the body is too long; expected at most {self.limits.body:,} bytes")
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self.limits.body:
            raise too_long
        parts, size = [], 0
        try:
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > self.limits.body:
                    raise too_long
        except ClientDisconnect as error:
            raise HTTPException(400, "the body ended before its end") from error
        return b"".join(parts)


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    try:
        body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:  # null in place of numbers that JSON does not have
        body = json.dumps(finite(content), allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, {"content-type": "application/json", **(headers or {})})


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = error.detail
    if error.status_code == 404:
        words = f"there is no address {request.scope['path']}; {_ADDRESSES}"
    elif error.status_code == 405:
        words = f"{request.method} {request.scope['path']} is not possible; {_ADDRESSES}"
    return _json({"error": words}, error.status_code, dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    """Tell of a defect, and show where it comes from to whoever runs the server."""
    print("gdod: a request failed; other requests are served on", file=sys.stderr)
    traceback.print_exception(error)
    return _json({"error": f"a defect of the program: {type(error).__name__}: {error}"}, 500)
