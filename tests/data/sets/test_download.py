"""Downloads from a server on this machine: progress, broken connections, checksums, archives that lie."""

import hashlib
import io
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

import gdod
from gdod.cli.download import register
from gdod.data.sets import download
from gdod.data.sets.download import BY_HAND, PUBLIC, Download, fetch, unpack

CONTENT = bytes(range(256)) * 2_000  # half a megabyte


@dataclass
class Server:
    """A server: the content it serves, the ways it misbehaves, and the requests it got."""

    url: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    length: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes after which the next connections break
    statuses: list[int] = field(default_factory=list)  # answers in place of the file, first of all
    asked: list[str | None] = field(default_factory=list)  # the Range of each request


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.headers["Range"])
            if state.statuses:
                self.send_error(state.statuses.pop(0))
                return
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
            start = int(asked[1]) if asked and state.ranges else 0
            if start and start >= len(state.content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(state.content) - 1}/{len(state.content)}")
            if state.length:
                self.send_header("Content-Length", str(len(state.content) - start))
            self.end_headers()
            rest = state.content[start:]
            self.wfile.write(rest[: state.cuts.pop(0)] if state.cuts else rest)

        def log_message(self, format: str, *args: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{listening.server_port}/file.bin"
    thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
    thread.start()
    yield state
    listening.shutdown()
    thread.join()
    listening.server_close()


def wanted(server: Server, content: bytes = CONTENT) -> Download:
    return Download(server.url, "file.bin", sha256=hashlib.sha256(content).hexdigest())


def test_a_file_arrives_with_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    path = fetch(wanted(server), tmp_path / "new", lambda here, total: seen.append((here, total)))
    assert path.read_bytes() == CONTENT
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) > 3
    assert [each.name for each in path.parent.iterdir()] == ["file.bin"]


def test_what_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    fetch(wanted(server), tmp_path)
    fetch(wanted(server), tmp_path)
    assert len(server.asked) == 1
    (tmp_path / "file.bin").write_bytes(b"something else")
    with pytest.raises(gdod.InputError, match="It was there already; remove it"):
        fetch(wanted(server), tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"something else"


def test_a_cut_connection_goes_on_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 50_000]
    assert fetch(wanted(server), tmp_path, pause=0).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_second_call_goes_on_where_the_first_gave_up(server: Server, tmp_path: Path) -> None:
    server.cuts = [70_000, *[0] * download.ATTEMPTS]
    with pytest.raises(gdod.InputError, match=r"70,000 bytes are kept in .*file\.bin\.part"):
        fetch(wanted(server), tmp_path, pause=0)
    assert not (tmp_path / "file.bin").exists()
    server.asked.clear()
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT
    assert server.asked == ["bytes=70000-"]


def test_a_whole_part_that_was_not_renamed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(wanted(server), tmp_path).read_bytes() == CONTENT


def test_a_server_that_cannot_go_on_sends_it_all_again(server: Server, tmp_path: Path) -> None:
    server.ranges, server.cuts = False, [100_000]
    assert fetch(wanted(server), tmp_path, pause=0).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-"]


def test_a_server_that_does_not_tell_the_length(server: Server, tmp_path: Path) -> None:
    server.length = False
    seen: list[int | None] = []
    assert fetch(wanted(server), tmp_path, lambda here, total: seen.append(total)).read_bytes() == CONTENT
    assert set(seen) == {None}


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 503]
    assert fetch(wanted(server), tmp_path, pause=0).read_bytes() == CONTENT
    (tmp_path / "file.bin").unlink()
    server.asked.clear()
    server.statuses = [404]
    with pytest.raises(gdod.InputError, match="answered 404"):
        fetch(wanted(server), tmp_path, pause=0)
    assert len(server.asked) == 1


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_wrong_checksum_is_refused(server: Server, tmp_path: Path, kind: str) -> None:
    right = hashlib.new(kind, CONTENT).hexdigest()
    server.content = CONTENT[:-1] + b"!"
    checksums = {"sha256": None, "md5": None, kind: right}
    expected = Download(server.url, "file.bin", checksums["sha256"], checksums["md5"])
    with pytest.raises(gdod.InputError, match=f"the {kind} of .* is .*, not {right}"):
        fetch(expected, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin.wrong"]
    # Nothing of it is in the way of the right file.
    server.content = CONTENT
    assert fetch(expected, tmp_path).read_bytes() == CONTENT


def test_nobody_answers(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(gdod.InputError, match="could not be fetched"):
        fetch(Download("http://127.0.0.1:9/none", "none"), tmp_path, pause=0, say=said.append)
    assert len(said) > 1
    assert "http://127.0.0.1:9/none cannot be reached" in said[0]
    assert "trying again in 0 s" in said[0]


def zipped(**files: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("dot", "."), content)
    return made.getvalue()


def tarred(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def census(server: Server, train: bytes, expected: bytes) -> Download:
    """Return the download of an archive like that of Census-Income: a tar inside a zip."""
    server.content = zipped(censusdottardotgz=tarred((tarfile.TarInfo("census-income.data"), train)))
    return Download(server.url, "census.zip", unpacked={"census-income.data": hashlib.sha256(expected).hexdigest()})


def test_an_archive_is_unpacked_and_what_it_holds_is_checked(server: Server, tmp_path: Path) -> None:
    fetch(census(server, b"rows", b"rows"), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["census-income.data", "census.zip"]
    assert (tmp_path / "census-income.data").read_bytes() == b"rows"


def test_a_wrong_file_inside_of_an_archive_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(gdod.InputError, match=r"census-income\.data in .* has the sha256"):
        fetch(census(server, b"other rows", b"rows"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["census.zip.wrong"]


def test_a_page_in_place_of_an_archive_is_refused(server: Server, tmp_path: Path) -> None:
    server.content = b"<html>This site has moved</html>"
    with pytest.raises(gdod.InputError, match="cut short or corrupt"):
        fetch(Download(server.url, "census.zip"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["census.zip.wrong"]


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


LINK_IN_ZIP = zipfile.ZipInfo("innocent")
LINK_IN_ZIP.external_attr = 0o120777 << 16


def link_zip() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(LINK_IN_ZIP, "/etc")
    return made.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        zipped(good=b"1", dotdot__outside=b"2"),
        zipped(good=b"1", __tmp__gdod_absolute=b"2"),
        zipped(**{"good": b"1", "a\\dotdot\\dotdot\\outside": b"2"}),
        tarred((tarfile.TarInfo("good"), b"1"), (tarfile.TarInfo("a/../../outside"), b"2")),
        tarred((tarfile.TarInfo("good"), b"1"), (link("way", ".."), b""), (tarfile.TarInfo("way/outside"), b"2")),
        zipped(innerdottar=tarred((tarfile.TarInfo("../outside"), b"2"))),
        link_zip(),
    ],
    ids=["zip ..", "zip absolute", "zip backslash", "tar ..", "tar link", "tar in zip", "zip link"],
)
def test_an_archive_cannot_write_outside(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    archive = tmp_path / "archive"
    archive.write_bytes(content)
    with pytest.raises(gdod.InputError, match="it is not unpacked"):
        unpack(archive, folder)
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [archive]  # not even the good file: all or nothing


def test_an_archive_that_grows_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "LARGEST", 100)
    (tmp_path / "big.zip").write_bytes(zipped(big=b"0" * 101))
    with pytest.raises(gdod.InputError, match="more than 100"):
        unpack(tmp_path / "big.zip", tmp_path)


def app() -> Typer:
    made = Typer()
    register(made)
    return made


def test_the_command(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path))
    monkeypatch.setitem(PUBLIC, "census", census(server, b"rows", b"rows"))
    result = CliRunner().invoke(app(), ["download", "census"])
    assert result.exit_code == 0, result.output
    assert hashlib.sha256(server.content).hexdigest() in result.output.replace("\n", "")
    assert (tmp_path / "downloads/census/census-income.data").read_bytes() == b"rows"
    for sha256, says in (("ab" * 32, f"not {'ab' * 32}"), ("ab", "expected 64 signs")):
        wrong = CliRunner().invoke(app(), ["download", "census", "--folder", str(tmp_path / "b"), "--sha256", sha256])
        assert wrong.exit_code == 2
        assert wrong.stderr.startswith("gdod: ")
        assert says in wrong.stderr


def test_a_file_that_was_taken_by_its_sha256_is_right_from_then_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has changed the file: what was accepted once is not refused the next time."""
    monkeypatch.setitem(PUBLIC, "census", census(server, b"rows", b"other rows"))
    command = ["download", "census", "--folder", str(tmp_path)]
    assert CliRunner().invoke(app(), command).exit_code == 2
    sha256 = hashlib.sha256(server.content).hexdigest()
    for options in (["--sha256", sha256.upper()], [], ["--sha256", sha256]):
        result = CliRunner().invoke(app(), [*command, *options])
        assert result.exit_code == 0, result.output
    assert (tmp_path / "census-income.data").read_bytes() == b"rows"
    (tmp_path / PUBLIC["census"].name).unlink()
    assert CliRunner().invoke(app(), command).exit_code == 2  # a new one is judged anew


@pytest.mark.parametrize("command", [["download", "census", "--folder"], ["ads", "--rows", "100", "--users", "10"]])
def test_a_folder_that_cannot_be_used_is_wrong_input(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "folder"
    result = CliRunner().invoke(app(), [*command, str(place / "ads.csv" if command[0] == "ads" else place)])
    assert result.exit_code == 2
    assert result.stderr.startswith("gdod: ")
    assert str(place) in result.stderr


def test_where_a_login_is_needed_the_command_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "user_info_format1.csv.gz").write_bytes(b"")
    result = CliRunner().invoke(app(), ["download", "ijcai15", "--folder", str(tmp_path)])
    assert result.exit_code == 0
    said = result.output
    assert BY_HAND["ijcai15"].page in said
    assert str(tmp_path / "user_log_format1.csv") + "\n" in said
    assert str(tmp_path / "user_info_format1.csv") + "  (is there)" in said


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    result = CliRunner().invoke(app(), ["download", "censsus"])
    assert result.exit_code == 2
    assert "did you mean 'census'" in result.output


def test_the_list_names_every_set() -> None:
    result = CliRunner().invoke(app(), ["sets"])
    assert result.exit_code == 0
    assert all(name in result.output for name in ("census", "bookcrossing", "ijcai15", "ads"))


def put(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")


CENSUS = ("census-income.data", "census-income.test")
BOOKS = ("BX-Book-Ratings.csv", "BX-Users.csv", "BX-Books.csv")


@pytest.mark.parametrize(
    ("name", "files", "here"),
    [
        ("ijcai15", (), "no"),
        ("ijcai15", BY_HAND["ijcai15"].files, "yes"),
        ("ijcai15", tuple(f"{file}.gz" for file in BY_HAND["ijcai15"].files), "yes"),
        ("ijcai15", BY_HAND["ijcai15"].files[:1], "no"),
        ("census", CENSUS, "yes"),
        ("census", ("part/census-income.data.gz", "part/census-income.test"), "yes"),
        ("bookcrossing", BOOKS, "yes"),
        ("bookcrossing", BOOKS[1:], "no"),
    ],
)
def test_the_list_knows_what_is_here(
    name: str, files: tuple[str, ...], here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever and however preparing would find it."""
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path))
    put(tmp_path / "downloads" / name, files)
    assert said_of(name) == here


def test_the_list_looks_into_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDOD_CACHE", str(tmp_path))
    folder = tmp_path / "downloads" / "ijcai15"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "data_format1.zip", "w") as archive:
        for file in BY_HAND["ijcai15"].files:
            archive.writestr(f"data_format1/{file}", "")
    assert said_of("ijcai15") == "yes"
    result = CliRunner().invoke(app(), ["download", "ijcai15"])
    assert result.output.count("(is there)") == 2
    (folder / "data_format1.zip").write_bytes(b"PK damaged")
    assert said_of("ijcai15") == "no"
    assert CliRunner().invoke(app(), ["download", "ijcai15"]).output.count("(is there)") == 0


def said_of(name: str) -> str:
    result = CliRunner().invoke(app(), ["sets"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return next(line.split()[-1] for line in result.output.splitlines() if line.startswith(name))
