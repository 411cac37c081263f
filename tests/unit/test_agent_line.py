"""What a worker says to its agent, read as the agent reads it."""

import socket
from pathlib import Path

from plait.agent.worker_lines import FromWorker, Hello, StalledLine
from plait.train.observers import AgentLine, Observers
from plait.train.stalls import Stall, StuckLink
from plait.wire import Codec


def test_a_stall_is_told_to_the_agent_in_words(tmp_path: Path) -> None:
    codec: Codec[FromWorker] = Codec(FromWorker)
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        line = AgentLine(str(path), "j/train/0", "w0")
        observers = Observers(agent=line)
        link = StuckLink(members=("w1",), unsent_bytes=4096, retries=2)
        observers.on_stall(None)
        observers.on_stall(Stall(step=7, waited_s=0.91234, usual_s=0.01, links=(link,)))
        observers.close()
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as lines:
            hello, stalled = (codec.decode(one) for one in lines)
    assert hello == Hello(attempt_id="j/train/0", worker_id="w0")
    assert isinstance(stalled, StalledLine)
    assert (stalled.step, stalled.waited_s) == (7, 0.912)
    assert "the link to w1 (4096 bytes unconfirmed, sent again 2 times) gave no answer" in stalled.reason
