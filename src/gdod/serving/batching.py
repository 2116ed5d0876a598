"""Requests that wait at the same time become one call of the model."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from gdod.serving.json_rows import Table
from gdod.serving.metrics import Metrics
from gdod.serving.model_calls import Predictions, predict_tables
from gdod.training.run import Run


@dataclass(frozen=True)
class _Waiting:
    table: Table
    answer: "asyncio.Future[Predictions]"


class Batching:
    """Hands requests to the model, which works in a thread of its own.

    Nobody waits for others to come: a call takes all requests that have come while the call before was under way.
    """

    def __init__(self, run: Run, metrics: Metrics, most_rows: int) -> None:
        self.run, self.metrics, self.most_rows = run, metrics, most_rows
        self._waiting: deque[_Waiting] = deque()
        self._come = asyncio.Event()

    async def predict(self, table: Table) -> Predictions:
        """Return the predictions of a request's rows; raise an InputError if they are refused."""
        answer: asyncio.Future[Predictions] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(table, answer))
        self._come.set()
        return await answer

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """A context in which requests are answered."""
        with ThreadPoolExecutor(1, thread_name_prefix="model") as thread:
            work = asyncio.create_task(self._work(thread))
            try:
                yield
            finally:
                work.cancel()
                with suppress(asyncio.CancelledError):
                    await work

    async def _work(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._come.wait()
            some = self._next()
            if not some:
                self._come.clear()
                continue
            answers: list[Predictions | Exception]
            try:
                answers = await loop.run_in_executor(thread, self._call, [one.table for one in some])
            except Exception as error:  # others are served on
                answers = [error] * len(some)
            for one, answer in zip(some, answers, strict=True):
                if one.answer.done():  # it took too long, and nobody waits any more
                    continue
                if isinstance(answer, Exception):
                    one.answer.set_exception(answer)
                else:
                    one.answer.set_result(answer)

    def _next(self) -> list[_Waiting]:
        """Return the requests of the next call: those that have waited longest, with no more rows than allowed."""
        some: list[_Waiting] = []
        rows = 0
        while self._waiting and (not some or rows + self._waiting[0].table.rows <= self.most_rows):
            one = self._waiting.popleft()
            if not one.answer.done():
                some.append(one)
                rows += one.table.rows
        return some

    def _call(self, tables: list[Table]) -> list[Predictions | Exception]:
        start = time.perf_counter()
        answers = predict_tables(self.run, tables, self.metrics)
        self.metrics.model_seconds.observe(time.perf_counter() - start)
        self.metrics.call_rows.observe(sum(table.rows for table in tables))
        self.metrics.call_requests.observe(len(tables))
        return answers
