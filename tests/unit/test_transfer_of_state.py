"""State from a peer: a nested state comes through bit for bit, and only to those who know the secret."""

import json
import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from plait.errors import PlaitError
from plait.train.transfer import Fetch, StateServer, fetch

STATE = {
    "step": 41,
    "model": {
        "a": torch.randn(3, 5),
        "b": torch.randn(4, dtype=torch.float64),
        "half": torch.randn(7).to(torch.bfloat16),
        "empty": torch.empty(0, 3),
        "one": torch.tensor(5),
    },
    "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
    "nothing": None,
}


@pytest.fixture
def server() -> Iterator[StateServer]:
    made = StateServer("127.0.0.1", "the word")
    yield made
    made.close()


def test_a_state_comes_through_as_it_was_when_published(server: StateServer) -> None:
    weight = torch.arange(6.0).view(2, 3)
    server.publish("3.w0", {**STATE, "weight": weight})
    weight.add_(100.0)  # training goes on
    found = fetch(server.address, "3.w0", "the word")
    assert torch.equal(found["weight"], torch.arange(6.0).view(2, 3))
    for name, tensor in STATE["model"].items():  # type: ignore[attr-defined]
        assert found["model"][name].dtype == tensor.dtype
        assert found["model"][name].shape == tensor.shape
        assert torch.equal(found["model"][name], tensor)
    assert found["step"] == 41
    assert found["nothing"] is None
    assert found["optimizer"]["param_groups"] == [{"lr": 0.1, "betas": (0.9, 0.99)}]
    assert torch.equal(found["optimizer"]["state"][0]["step"], torch.tensor(3.0))


@pytest.mark.parametrize("secret", ["another word", "", "das Wört"])
def test_who_does_not_know_the_secret_gets_nothing(server: StateServer, secret: str) -> None:
    server.publish("3.w0", STATE)
    with pytest.raises(PlaitError, match="the stream ended 8 bytes early"):
        fetch(server.address, "3.w0", secret)
    assert fetch(server.address, "3.w0", "the word")["step"] == 41


@pytest.mark.parametrize("line", [b"\n", b"nonsense\n", b"[1, 2]\n", b'{"generation": "3.w0"}\n', b"3\n"])
def test_what_is_no_request_is_hung_up_on(server: StateServer, line: bytes) -> None:
    server.publish("3.w0", STATE)
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20.0) as connection:
        connection.sendall(line)
        assert connection.recv(1) == b""
    assert fetch(server.address, "3.w0", "the word")["step"] == 41


def test_a_fetch_waits_for_the_generation_to_be_published(server: StateServer) -> None:
    server.publish("3.w0", {"step": 3})
    waiting = Fetch(server.address, "4.w0", "the word")
    assert not waiting.is_over
    server.publish("4.w0", {"step": 4})
    waiting.wait(20.0)
    assert waiting.is_over
    assert waiting.error is None
    assert waiting.state == {"step": 4}


def test_a_donor_that_is_gone_is_an_error_and_no_exception() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    failed = Fetch(f"127.0.0.1:{port}", "4.w0", "the word")
    failed.wait(20.0)
    assert failed.is_over
    assert failed.error is not None
    assert f"127.0.0.1:{port}" in failed.error


@pytest.mark.parametrize("cut", [0, 5, 8, 40, -1])
def test_a_stream_that_breaks_off_is_refused(server: StateServer, cut: int) -> None:
    """A donor that dies while it sends: whatever has come by then is not taken for a state."""
    server.publish("3.w0", STATE)
    host, port = server.address.rsplit(":", 1)
    request = json.dumps({"generation": "3.w0", "secret": "the word"}).encode() + b"\n"
    with socket.create_connection((host, int(port)), timeout=20.0) as connection:
        connection.sendall(request)
        whole = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(1 << 16)
                accepted.sendall(whole[:cut])

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(PlaitError, match="the stream ended"):
            fetch(f"127.0.0.1:{listener.getsockname()[1]}", "3.w0", "the word")
        thread.join()
