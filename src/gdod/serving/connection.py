"""A connection of the server, which is not kept for a client that never ends the head of a request."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def connection_type(idle: float, head: float) -> type[H11Protocol]:
    """Return the class of connections with these limits.

    uvicorn limits the time after an answer alone: a connection on which nothing, or half a head, ever comes would stay
    as long as the server, and some thousand of them take all that a process may open.

    Args:
        idle: seconds until the first byte of a new connection.
        head: seconds from the first byte of a request to the end of its head.
    """

    class Connection(H11Protocol):
        _limit: asyncio.TimerHandle | None = None
        _has_begun = False  # whether a part of a head has come

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._limit = self.loop.call_later(idle, self.timeout_keep_alive_handler)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:  # a whole head, so that others limit it
                self._stop()
                self._has_begun = False
            elif not self._has_begun:
                self._stop()
                self._has_begun = True
                self._limit = self.loop.call_later(head, self.timeout_keep_alive_handler)

        def _stop(self) -> None:
            if self._limit is not None:
                self._limit.cancel()
                self._limit = None

    return Connection
