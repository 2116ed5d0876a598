"""`gdod serve`: a process of its own and real requests."""

import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import uvicorn
from tests.serving.running import COLUMNS, Server, answer, send, serving, table, trained
from typer.testing import CliRunner
from uvicorn.server import ServerState

from gdod import InputError
from gdod.cli import app
from gdod.serving.connection import connection_type
from gdod.training import load_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run) as one:
        yield one


def predicted(run: Path, frame: pl.DataFrame, place: Path) -> tuple[pl.DataFrame, list[str]]:
    """Return what `gdod predict` writes for a table, and its notes."""
    source, out = place / "rows.parquet", place / "out.parquet"
    frame.write_parquet(source)
    done = CliRunner().invoke(app, ["predict", str(run), str(source), "--out", str(out), "--threads", "1", "--json"])
    assert done.exit_code == 0, done.output
    notes = json.loads(done.stdout)["notes"]
    return pl.read_parquet(out), [note.replace(str(source), "the table") for note in notes]


def test_answers_are_those_of_gdod_predict(run: Path, server: Server, tmp_path: Path) -> None:
    frame = table(30, seed=5).select(COLUMNS)
    expected, _ = predicted(run, frame, tmp_path)
    assert expected.columns == ["click", "paid", "kind of buy:none", "kind of buy:one", "kind of buy:two"]
    plain = load_run(run, weights="last").predict(frame)  # without calibration
    assert ((plain["click"] - expected["click"]).abs() > 1e-3).all()
    together = server.predict(frame.to_dicts())
    assert together.content == {"predictions": expected.to_dicts(), "notes": []}  # to the bit
    words = [{name: str(value) for name, value in row.items()} for row in frame.to_dicts()]
    lists = [{**row, "seen": row["seen"].split()} for row in frame.to_dicts()]
    for rows in (words, lists):
        assert server.predict(rows).content == together.content
    # The order of sums differs for other numbers of rows.
    one_by_one = [server.predict([row]).content["predictions"][0] for row in frame.to_dicts()]
    for one, row in zip(one_by_one, expected.to_dicts(), strict=True):
        assert one == pytest.approx(row, rel=1e-5)


def test_gaps_are_handled_as_gdod_predict_does(run: Path, server: Server, tmp_path: Path) -> None:
    frame = table(4, seed=6).select(COLUMNS)
    gaps = frame.with_columns(
        pl.Series("city", ["Atlantis", None, "city1", "city2"]),
        pl.Series("age", [None, float("nan"), 30.0, 31.0]),
        pl.Series("at", [None, "no time", "2024-05-02 10:00", "2030-01-01 00:00"]),
    ).drop("item")
    expected, notes = predicted(run, gaps, tmp_path)
    unknown = server.metric('gdod_unknown_values_total{column="city"}')
    got = server.predict(gaps.to_dicts())
    assert got.content == {"predictions": expected.to_dicts(), "notes": notes}
    assert notes == ["the table has no column 'item'; it counts as missing in every row"]
    assert server.metric('gdod_unknown_values_total{column="city"}') == unknown + 1
    # A key that a row lacks is a null.
    lacking = [{key: value for key, value in row.items() if value is not None} for row in gaps.to_dicts()]
    assert server.predict(lacking).content == got.content
    renamed = server.predict([{"City": "city1", "age": 3, "id": 1}]).content["notes"]
    assert renamed[0] == "the table has no column 'city' (did you mean 'City'?); it counts as missing in every row"
    assert server.predict([]).content == {"predictions": [], "notes": []}


def test_what_is_refused_is_refused_in_the_words_of_gdod_predict(run: Path, server: Server) -> None:
    loaded = load_run(run)
    wrong: list[list[dict[str, Any]]] = [[{"age": 3}, {"age": "old"}], [{"nothing": 1}], [{"age": [1.0, 2.0]}]]
    for rows in wrong:
        with pytest.raises(InputError) as error:
            loaded.predict(pl.DataFrame(rows, strict=False))
        got = server.predict(rows)
        assert (got.status, got.content) == (422, {"error": str(error.value)})
    others: list[tuple[list[dict[str, Any]], str]] = [
        ([{"age": 1}, {"city": {"name": "x"}}], 'row 2: column \'city\' is {"name": "x"}; expected text'),
        ([{"city": [["a"]]}], "row 1: column 'city' is [[\"a\"]]; expected text"),
        ([{"seen": ["a"]}, {"seen": "b"}], "column 'seen' holds lists, and in other rows \"b\""),
        ([{"city": "\ud800"}], "holds text that is no Unicode"),
    ]
    for rows, words in others:
        got = server.predict(rows)
        assert got.status == 422
        assert words in got.content["error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"rows": 1' + b"1" * 5_000 + b"}", "no JSON"),
        (b"[]", "the body is a list; expected"),
        (b"{}", "the body holds nothing; expected"),
        (b'{"rows": [], "weights": "last"}', "the body holds 'rows', 'weights'; expected"),
        (b'{"rows": {"age": 1}}', "rows is an object; expected"),
        (b'{"rows": [{"age": 1}, 2]}', "row 2 is a number; expected"),
    ],
)
def test_a_body_of_another_form_is_refused(server: Server, body: bytes, words: str) -> None:
    got = server.ask("/predict", body)
    assert got.status == 400
    assert words in got.content["error"]


def test_odd_numbers_are_taken(server: Server) -> None:
    for row, like in (
        ({"age": 10**400}, {"age": None}),
        ({"age": True}, {"age": 1}),
        ({"city": 10**30}, {"city": "Atlantis"}),
        ({"city": 1e-7}, {"city": "Atlantis"}),
        ({"city": False}, {"city": "Atlantis"}),
        ({"at": True}, None),
        ({"at": 7}, None),
    ):
        got = server.predict([row, {"item": "item1"}])
        if like is None:
            assert (got.status, "expected dates or times" in got.content["error"]) == (422, True)
        else:
            assert got.content == server.predict([like, {"item": "item1"}]).content


def test_requests_that_come_together_are_one_call_of_the_model(run: Path, server: Server) -> None:
    rows = table(12, seed=7).select(COLUMNS).to_dicts()
    expected = load_run(run).predict(table(12, seed=7)).to_dicts()
    connections = [server.connect() for _ in rows]
    for connection in connections:
        send(connection, None, "/health")
        assert answer(connection).status == 200
    calls, requests = server.metric("gdod_call_requests_count"), server.metric("gdod_call_requests_sum")
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        for at, connection in enumerate(connections):
            # Other rows, and other types: nobody notices whom they are answered with.
            send(connection, {"rows": [rows[at], {"age": "old"}] if at == 3 else [rows[at]]})
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    answers = [answer(connection) for connection in connections]
    for connection in connections:
        connection.close()
    assert answers[3].status == 422
    assert "row 2: column 'age' is 'old'" in answers[3].content["error"]
    for at, got in enumerate(answers):
        if at != 3:
            assert got.content["predictions"] == [pytest.approx(expected[at], rel=1e-5)]
    assert server.metric("gdod_call_requests_sum") - requests == 12
    assert server.metric("gdod_call_requests_count") - calls <= 4


def test_no_other_address_is_there(server: Server) -> None:
    outside = "/../../../etc/passwd", "/..%2f..%2fetc/passwd", "/predict/../health", "//health"
    for path in ("/", "/config.json", "/predict/", "/health/", *outside):
        got = server.ask(path)
        assert got.status == 404, path
        assert got.content["error"].endswith("there are POST /predict, GET /health and GET /metrics")
    got = server.ask("/predict")
    assert (got.status, got.headers["allow"]) == (405, "POST")
    assert server.ask("/health", {}, "DELETE").status == 405


def test_health_and_metrics_tell_what_is_served(run: Path, server: Server) -> None:
    health = server.ask("/health")
    told = {name: value for name, value in server.told.items() if name != "url"}
    assert health.content == {"status": "ok", **told}
    assert told["columns"] == COLUMNS
    assert told["tasks"][2] == {"name": "kind of buy", "kind": "multiclass", "classes": ["none", "one", "two"]}
    before = server.metric('gdod_requests_total{status="200"}'), server.metric("gdod_call_rows_sum")
    server.predict([{"age": 1}, {"age": 2}])
    assert server.metric('gdod_requests_total{status="200"}') == before[0] + 1
    assert server.metric("gdod_call_rows_sum") == before[1] + 2
    assert server.ask("/metrics").headers["content-type"].startswith("text/plain; version=")


def test_limits(run: Path) -> None:
    limits = ("--max-body", "2000", "--max-rows", "3", "--timeout", "1.5", "--max-requests", "1")
    with serving(run, *limits) as server:
        assert server.predict([{"age": 1}] * 3).status == 200
        got = server.predict([{"age": 1}] * 4)
        assert (got.status, got.content["error"]) == (413, "the body has 4 rows; expected at most 3")
        big = b'{"rows": [' + b" " * 50_000_000 + b"]}"
        too_long = {"error": "the body is too long; expected at most 2,000 bytes"}
        got = server.ask("/predict", big)
        assert (got.status, got.content) == (413, too_long)
        with closing(server.connect()) as connection:
            chunked = {"transfer-encoding": "chunked"}
            connection.request("POST", "/predict", iter([b" " * 1_500] * 2), chunked, encode_chunked=True)
            got = answer(connection)
            assert (got.status, got.content) == (413, too_long)
            connection.request("POST", "/predict", b"packed", {"content-encoding": "gzip"})
            assert answer(connection).status == 415
        # While one request is under way there is no room for another, and a body that does not come is not waited for.
        with closing(begin(server)) as connection:
            got = server.predict([{"age": 1}])
            assert (got.status, got.headers["retry-after"]) == (503, "1")
            assert got.content["error"] == "1 requests are under way already; try again"
            assert server.ask("/health").status == 200
            slow = answer(connection)
            assert (slow.status, slow.content["error"]) == (408, "the body did not come within 1.5 s")
        assert server.predict([{"age": 1}]).status == 200
        assert server.end(signal.SIGINT) == (130, "gdod: ended after 8 requests\n")


def test_heads_that_do_not_come_are_not_waited_for(run: Path) -> None:
    """Neither of a new connection, byte by byte, nor after an answer; whole requests between them are answered."""
    with serving(run, "--timeout", "3") as server:
        place = "127.0.0.1", server.port
        with socket.create_connection(place) as new, closing(server.connect()) as used:
            send(used, {"rows": [{"age": 1}]})
            assert answer(used).status == 200
            assert used.sock is not None
            for one in (new, used.sock):
                one.sendall(b"POST /predict HT")
            assert server.predict([{"age": 1}]).status == 200
            assert all(ends(one) for one in (new, used.sock))
        assert server.end()[0] == 143


def ends(connection: socket.socket) -> bool:
    """Return whether the other side closes a connection, without an answer, while more and more of a head comes."""
    connection.settimeout(0.3)
    for _ in range(100):
        try:
            connection.sendall(b"x")
            return connection.recv(1) == b""
        except TimeoutError:
            pass
        except ConnectionError:
            return True
    return False


def test_connections_on_which_nothing_comes_are_closed() -> None:
    """Apart from the command, whose minute is too long for a test."""

    async def first_bytes() -> bytes:
        kind, state = connection_type(idle=0.05, head=60), ServerState()
        config = uvicorn.Config(_nothing, http=kind, log_config=None)
        config.load()
        place = await asyncio.get_running_loop().create_server(
            lambda: kind(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        async with place:
            reader, writer = await asyncio.open_connection(*place.sockets[0].getsockname())
            with closing(writer):
                return await asyncio.wait_for(reader.read(), 30)

    assert asyncio.run(first_bytes()) == b""


async def _nothing(scope: Any, receive: Any, send: Any) -> None: ...


def begin(server: Server) -> http.client.HTTPConnection:
    """Send the head of a request whose body is `{"rows": [{"age": 1}]}`, and wait until it is under way."""
    connection = server.connect()
    connection.putrequest("POST", "/predict")
    connection.putheader("content-length", str(len(b'{"rows": [{"age": 1}]}')))
    connection.endheaders()
    while server.metric("gdod_requests_under_way") < 1:
        time.sleep(0.01)
    return connection


def test_a_request_under_way_is_answered_before_the_server_ends(run: Path) -> None:
    with serving(run) as server, closing(server.connect()) as idle, closing(begin(server)) as connection:
        send(idle, None, "/health")
        answer(idle)
        server.process.send_signal(signal.SIGTERM)
        assert idle.sock is not None
        assert idle.sock.recv(1) == b""  # closed: it is ending
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), 5)
        time.sleep(0.5)  # the server waits longer than a moment
        connection.send(b'{"rows": [{"age": 1}]}')
        got = answer(connection)
        assert got.status == 200
        assert set(got.content["predictions"][0]) >= {"click", "paid"}
        _, said = server.process.communicate(timeout=30)
        assert (server.process.returncode, said) == (143, "gdod: ended after 1 requests\n")


def refused(*arguments: str) -> str:
    """Return the only line of a command that refuses to start."""
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    return done.stderr


def test_a_port_that_is_taken_is_told(run: Path, server: Server) -> None:
    said = refused(str(run), "--port", str(server.port))
    assert said.startswith(f"gdod: port {server.port} of 127.0.0.1 is taken: another program listens there; choose")


def test_a_damaged_run_is_refused_in_the_words_of_gdod_predict(run: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(run, tmp_path / "run")
    best = damaged / "checkpoints" / "best.pt"
    best.write_bytes(best.read_bytes()[:1000])
    for place in (damaged, tmp_path / "nothing"):
        done = CliRunner().invoke(app, ["predict", str(place), "rows.csv", "--out", str(tmp_path / "out.csv")])
        assert done.exit_code == 2
        assert refused(str(place), "--port", "0") == done.stderr


def test_hosts_and_options_are_checked(tmp_path: Path) -> None:
    nothing = str(tmp_path / "nothing")
    assert "can be reached from other machines" in refused(nothing, "--host", "0.0.0.0", "--port", "0")
    assert "can be reached from other machines" not in refused(nothing, "--host", "localhost", "--port", "0")
    assert "is no address of this machine" in refused(nothing, "--host", "no such host", "--port", "0")
    assert "cannot be listened at" in refused(nothing, "--host", "203.0.113.7", "--port", "0")
    assert "--timeout=0.0; expected a number above 0" in refused(nothing, "--timeout", "0")


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gdod.serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    needs = "gdod serve needs uvicorn, which is not installed. Install it with: pip install 'gdod[serve]'"
    assert refused("run") == f"gdod: {needs}\n"
