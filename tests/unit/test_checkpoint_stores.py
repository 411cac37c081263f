"""What an object store is asked and how its answers are understood, without a server."""

import os
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from plait.train.checkpoint.object_store import ObjectStore
from plait.train.checkpoint.s3_uploads import abort_uploads
from plait.train.checkpoint.stores import FileStore, ObjectExists, ObjectMissing, StoreFailed, StoreRefused, open_store

SPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class Answers(BaseHTTPRequestHandler):
    """Answers each method with what the test has put there, and writes down what was asked."""

    protocol_version = "HTTP/1.1"
    answers: dict[str, tuple[int, dict[str, str], bytes]]
    asked: list[tuple[str, str, dict[str, str]]]

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        status, headers, body = self.answers[self.command]
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = answer  # noqa: N815 - names of http.server


@pytest.fixture
def server() -> Iterator[tuple[str, type[Answers]]]:
    class Mine(Answers):
        answers: dict[str, tuple[int, dict[str, str], bytes]] = {}  # noqa: RUF012 - one for each test
        asked: list[tuple[str, str, dict[str, str]]] = []  # noqa: RUF012

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Mine)
    thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{listening.server_address[1]}", Mine
    listening.shutdown()
    thread.join()
    listening.server_close()


def options(endpoint: str) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "access_key_id": "key",
        "secret_access_key": "secret",
        "region": "us-east-1",
        "virtual_hosted_style_request": "false",
    }


def store_at(endpoint: str) -> ObjectStore:
    return ObjectStore("s3://bucket/run", options(endpoint))


HEAD = {"ETag": '"1"', "Last-Modified": "Mon, 30 Nov 2026 00:00:00 GMT"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(503, StoreFailed), (500, StoreFailed), (403, StoreRefused), (404, ObjectMissing), (412, ObjectExists)],
)
def test_answers_become_what_they_mean(server: tuple[str, type[Answers]], status: int, kind: type[Exception]) -> None:
    endpoint, answers = server
    answers.answers["PUT"] = status, {}, b"<Error><Code>Told</Code></Error>"
    with pytest.raises(kind):
        store_at(endpoint).create("commits/1.json", b"{}")
    assert len(answers.asked) == 1  # asking again is the repository's part, with waits


def test_a_commit_is_created_only_where_there_is_none(server: tuple[str, type[Answers]]) -> None:
    endpoint, answers = server
    answers.answers["PUT"] = 200, HEAD, b""
    store_at(endpoint).create("commits/1.json", b"{}")
    command, path, headers = answers.asked[0]
    assert (command, path) == ("PUT", "/bucket/run/commits/1.json")
    assert headers["if-none-match"] == "*"
    store_at(endpoint).put("data/x", b"123", 3)
    assert "if-none-match" not in answers.asked[1][2]


def test_a_store_that_gives_wholes_for_parts_is_told_and_read(server: tuple[str, type[Answers]]) -> None:
    endpoint, answers = server
    data = bytes(range(100))
    answers.answers["GET"] = 200, HEAD, data
    store = store_at(endpoint)
    assert [bytes(part) for part in store.get_ranges("x", [(3, 9), (50, 100)])] == [data[3:9], data[50:]]
    assert "whole" in store.notes[0]
    asked = len(answers.asked)
    assert bytes(store.get_ranges("x", [(0, 100)])[0]) == data
    assert len(answers.asked) == asked  # it was read once
    with pytest.raises(StoreFailed, match="range from 90 to 110"):
        store.get_ranges("x", [(90, 110)])


class Parts(Answers):
    """Gives parts of one object; ``fault`` says what goes wrong with the next answer."""

    data = bytes(range(256)) * 40
    fault = ""

    def do_GET(self) -> None:
        type(self).asked.append((self.command, self.path, {}))
        fault, type(self).fault = type(self).fault, ""
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part = self.data[first : last + 1]
        self.send_response_only(206)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part[: len(part) // 2] if fault == "short" else part)
        self.close_connection = bool(fault)


@pytest.fixture
def parts() -> Iterator[tuple[str, type[Parts]]]:
    class Mine(Parts):
        asked: list[tuple[str, str, dict[str, str]]] = []  # noqa: RUF012

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Mine)
    listening.daemon_threads = True
    thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{listening.server_address[1]}", Mine
    listening.shutdown()
    thread.join()
    listening.server_close()


def pieces(store: ObjectStore | FileStore, first: int, sizes: list[int]) -> bytes:
    """Returns what fills pieces of these sizes from ``first`` on."""
    memory = [memoryview(bytearray(size)) for size in sizes]
    with store.stream("x", first, first + sum(sizes)) as fill:
        for piece in memory:
            fill(piece)
    return b"".join(memory)


def test_a_part_goes_straight_into_memory_by_a_signed_request(parts: tuple[str, type[Parts]]) -> None:
    endpoint, server = parts
    store = store_at(endpoint)
    assert pieces(store, 3, [5, 0, 4000, 1]) == server.data[3:4009]
    assert pieces(store, 9, [7]) == server.data[9:16]
    assert [command for command, _, _ in server.asked] == ["GET", "GET"]
    assert all(path.startswith("/bucket/run/x?") and "X-Amz-Signature=" in path for _, path, _ in server.asked)
    assert store.notes == ()


def test_an_answer_that_ends_early_is_a_failure_and_a_closed_connection_is_none(parts: tuple[str, type[Parts]]) -> None:
    endpoint, server = parts
    store = store_at(endpoint)
    server.fault = "short"
    with pytest.raises(StoreFailed, match="ended"):
        pieces(store, 0, [100])
    server.fault = "closes"  # after it has answered, without saying so
    assert pieces(store, 0, [100]) == server.data[:100]
    assert pieces(store, 0, [100]) == server.data[:100]


@pytest.mark.parametrize(("status", "kind"), [(404, ObjectMissing), (503, StoreFailed)])
def test_direct_answers_become_what_they_mean(
    server: tuple[str, type[Answers]], status: int, kind: type[Exception]
) -> None:
    endpoint, answers = server
    answers.answers["GET"] = status, {}, b""
    with pytest.raises(kind):
        pieces(store_at(endpoint), 0, [10])


def test_what_cannot_be_read_directly_is_read_through_obstore(server: tuple[str, type[Answers]]) -> None:
    endpoint, answers = server
    data = bytes(range(100))
    answers.answers["GET"] = 200, HEAD, data  # the whole for a part
    store = store_at(endpoint)
    assert pieces(store, 3, [4, 2]) == data[3:9]
    assert pieces(store, 50, [50]) == data[50:]
    assert "whole" in store.notes[0]


def test_no_signed_request_goes_round_a_proxy(
    server: tuple[str, type[Answers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, answers = server
    answers.answers["GET"] = 200, HEAD, b"0123456789"
    monkeypatch.setenv("http_proxy", endpoint)  # which obstore asks too
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with suppress(StoreFailed):
        pieces(store_at("http://192.0.2.1:9"), 0, [10])
    assert all("X-Amz-Signature" not in path for _, path, _ in answers.asked)


def test_files_go_straight_into_memory_too(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(range(200)))
    store = FileStore(tmp_path)
    assert pieces(store, 7, [1, 90, 0, 2]) == bytes(range(7, 100))
    with pytest.raises(StoreFailed, match="ends at byte 200"):
        pieces(store, 150, [100])
    with pytest.raises(ObjectMissing), FileStore(tmp_path / "none").stream("x", 0, 1):
        pass


def test_nobody_there_is_a_failure_that_may_pass() -> None:
    with pytest.raises(StoreFailed):
        store_at("http://127.0.0.1:9").get("x")


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(StoreRefused, match="hdfs://x"):
        open_store("hdfs://x")


UPLOADS = f"""<?xml version="1.0"?><ListMultipartUploadsResult {SPACE}>
<Upload><Key>run/data/1/r0</Key><UploadId>a b</UploadId></Upload>
<Upload><Key>other/data</Key><UploadId>c</UploadId></Upload>
<Upload><Key>run/data/2/r0</Key><UploadId>d</UploadId></Upload>
</ListMultipartUploadsResult>""".encode()


def test_uploads_of_dead_writers_are_aborted_and_no_others(server: tuple[str, type[Answers]]) -> None:
    endpoint, answers = server
    answers.answers = {"GET": (200, {}, UPLOADS), "DELETE": (204, {}, b"")}
    assert abort_uploads(options(endpoint), "bucket", "run/") == 2
    deleted = [path for command, path, _ in answers.asked if command == "DELETE"]
    assert deleted == ["/bucket/run/data/1/r0?uploadId=a%20b", "/bucket/run/data/2/r0?uploadId=d"]
    assert all("AWS4-HMAC-SHA256 Credential=key/" in headers["authorization"] for _, _, headers in answers.asked)


@pytest.mark.parametrize("text", [b"no xml", b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>'])
def test_a_list_of_uploads_that_is_none_is_a_failure(server: tuple[str, type[Answers]], text: bytes) -> None:
    endpoint, answers = server
    answers.answers["GET"] = 200, {}, text
    with pytest.raises(StoreFailed, match="list of uploads"):
        abort_uploads(options(endpoint), "bucket", "run/")


def test_an_upload_that_is_gone_already_does_no_harm(server: tuple[str, type[Answers]]) -> None:
    endpoint, answers = server
    answers.answers = {"GET": (200, {}, UPLOADS), "DELETE": (404, {}, b"")}
    assert abort_uploads(options(endpoint), "bucket", "run/") == 2
    answers.answers["DELETE"] = 500, {}, b""
    with pytest.raises(StoreFailed, match="HTTP 500"):
        abort_uploads(options(endpoint), "bucket", "run/")


def aligned(num_bytes: int) -> memoryview:
    import mmap

    memory = mmap.mmap(-1, -(-num_bytes // 4096) * 4096)
    memory[:num_bytes] = os.urandom(num_bytes)
    return memoryview(memory)


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 2**20 + 17, 40 * 2**20, 48 * 2**20 + 4097])
def test_files_of_any_size_hold_what_was_given(tmp_path: Path, num_bytes: int) -> None:
    data, store, seen = aligned(num_bytes) if num_bytes else memoryview(b""), FileStore(tmp_path), bytearray()
    store.put("a/b/x", data, num_bytes, seen.extend)
    assert bytes(seen) == bytes(data[:num_bytes]) == store.get("a/b/x")
    assert [entry.num_bytes for entry in store.list("a/")] == [num_bytes]
    middle = [(num_bytes // 3, num_bytes // 2), (0, num_bytes)]
    assert [bytes(part) for part in store.get_ranges("a/b/x", middle)] == [bytes(data[a:b]) for a, b in middle]


def test_a_file_that_ends_early_is_a_failure(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("x", b"123", 3)
    with pytest.raises(StoreFailed, match="ends at byte 3"):
        store.get_ranges("x", [(0, 4)])


def test_a_writer_that_dies_in_a_file_leaves_nothing_in_sight(tmp_path: Path) -> None:
    store = FileStore(tmp_path)

    def fail(_part: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put("data/x", aligned(2**22), 2**22, fail)
    assert store.list("") == []
    assert list((tmp_path / "data").iterdir()) == []


def test_a_directory_that_another_writer_removes_at_that_moment_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs that begin at one place at the same time: one tidies what the other is about to write into."""
    store, usual, removed = FileStore(tmp_path), os.open, list[Path]()

    def beside(path: Any, flags: int, mode: int = 0o777) -> int:
        folder = Path(path).parent
        if ".writing-" in str(path) and folder.is_dir() and len(removed) < 3:
            folder.rmdir()
            removed.append(folder)
        return usual(path, flags, mode)

    monkeypatch.setattr(os, "open", beside)
    store.create("probe/one", b"1")
    store.put("data/x/r00000.json", b"22", 2)
    assert removed == [tmp_path / "probe"] * 3
    assert [(entry.key, entry.num_bytes) for entry in store.list("")] == [("data/x/r00000.json", 2), ("probe/one", 1)]


def test_a_place_where_no_directory_can_be_made_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((ObjectMissing, StoreRefused)):
        FileStore(tmp_path / "file").create("probe/one", b"1")
