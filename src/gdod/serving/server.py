"""A server process for one run: where it listens, and how it ends."""

import errno
import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from math import ceil
from types import FrameType
from typing import Self

import uvicorn

from gdod.errors import InputError
from gdod.serving.application import Application, Limits
from gdod.serving.connection import connection_type
from gdod.serving.example import example_row
from gdod.serving.json_rows import table_of
from gdod.serving.model_calls import predict_tables
from gdod.training.interruption import StopRequest
from gdod.training.run import Run

_HEAD = 64 * 1024  # the most bytes of a request's head
_WAITING = 1024  # connections that the system holds until they are taken
_IDLE = 60  # seconds after which a connection without a request is closed
_WARM_UP = 3  # predictions


class Place:
    """An address of this machine, which is taken from the beginning, but listens only when the server is ready."""

    def __init__(self, host: str, port: int) -> None:
        """``port``: 0 for any that is free."""
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        except (OSError, UnicodeError) as error:
            raise InputError(
                f"--host {host!r} is no address of this machine ({error}); expected one, e.g. 127.0.0.1"
            ) from error
        self.host, self.port = host, port
        self.socket = socket.socket(family, kind, protocol)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server before left it
        with self._explained():
            self.socket.bind(address)
        self.address, self.port = self.socket.getsockname()[:2]

    @property
    def url(self) -> str:
        return f"http://{f'[{self.address}]' if ':' in self.address else self.address}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine reach it."""
        return ip_address(self.address.partition("%")[0]).is_loopback

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def listen(self) -> None:
        with self._explained():
            self.socket.listen(_WAITING)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.socket.close()
            if error.errno == errno.EADDRINUSE:
                raise InputError(
                    f"port {self.port} of {self.host} is taken: another program listens there; choose another one with "
                    "--port, or --port 0 for any that is free"
                ) from error
            raise InputError(
                f"port {self.port} of {self.host} cannot be listened at: {error.strerror}; choose others with --host "
                "and --port"
            ) from error


@dataclass(frozen=True)
class Ended:
    """How a server came to its end."""

    signal: int
    requests: int
    """The number of requests to /predict that it answered."""


def serve(run: Run, place: Place, limits: Limits, listening: Callable[[], object] = lambda: None) -> Ended:
    """Answer requests until SIGINT (Ctrl-C) or SIGTERM comes; those under way are finished first.

    Args:
        run: the model that predicts.
        place: where to listen.
        limits: what a request may take.
        listening: called when requests are answered.
    """
    example = table_of(run, [example_row(run)])
    for _ in range(_WARM_UP):  # the first request need not wait for what is made on the first use
        predict_tables(run, [example])
    application = Application(run, limits)
    config = uvicorn.Config(
        application.asgi(),
        http=connection_type(_IDLE, limits.seconds),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=_HEAD,
        timeout_keep_alive=_IDLE,
        timeout_graceful_shutdown=ceil(limits.seconds) + 1,
    )
    # What is loaded by now stays. Looking through all of it for garbage, now and then, would take a sixth of a second
    # each time, and all requests would wait.
    gc.collect()
    gc.freeze()
    place.listen()
    with StopRequest() as stop:
        server = _Server(config, listening, stop)
        with suppress(KeyboardInterrupt):  # a second signal, which ends it at once
            server.run([place.socket])
    assert stop.number is not None
    return Ended(stop.number, application.answered)


class _Server(uvicorn.Server):
    """Tells when it listens, and minds signals that came before its own handlers were there."""

    def __init__(self, config: uvicorn.Config, listening: Callable[[], object], stop: StopRequest) -> None:
        super().__init__(config)
        self.listening, self.stop = listening, stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.should_exit = self.should_exit or bool(self.stop)
        self.listening()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.force_exit or self.should_exit  # the second signal: it waits for nobody
        super().handle_exit(sig, frame)
