"""Measuring for real: the child on this machine's processor, children that misbehave, and TCP over a shaped link."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.hardware.affinity import build
from plait.hardware.probes.child import MeasuringFailed, MeasuringProgram
from plait.hardware.probes.network import Answerer, PeerUnreachable, measure_peer
from plait.hardware.probes.plan import Task
from plait.hardware.probes.session import measure, pair_figures
from plait.hardware.topology import Component, Fragment, Locality
from plait.hardware.values import Source

CPU = Component(key="cpu", name="CPU", kind="cpu", accelerator_type="CPU", locality=Locality(numa_nodes=(0,)))
THIS = Fragment(origin="t", format="t", components=(CPU,))


def script(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "child.py"
    path.write_text("import json, sys, time\n" + text, encoding="utf-8")
    return [sys.executable, str(path)]


HELLO = (
    'print(json.dumps({"devices": [{"name": "cpu", "kind": "cpu", "pci_address": None, "uuid": ""}]}), flush=True)\n'
)


@pytest.mark.slow
def test_this_processor_is_measured_kept_checked_and_used(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int, _: str) -> None:
        seen.append((done, total))

    matrix = build({"n": THIS})
    first = measure("n", THIS, matrix, budget_s=20.0, directory=tmp_path, progress=progress)
    whats = {figure.what for figure in first.results.figures}
    assert whats == {"memory", "matmul_fp32"}
    assert all(figure.value > 0 for figure in first.results.figures)
    assert first.path is not None
    assert seen[-1] == (2, 2)
    assert any("TFLOPS in fp32" in note for note in first.notes)
    used = build({"n": THIS}, measurements=pair_figures(first.results))
    assert used.cell("n/cpu", "n/cpu").source == Source.MEASURED
    again = measure("n", THIS, matrix, budget_s=20.0, directory=tmp_path, progress=progress)
    is_kept = again.results == first.results
    has_drifted = any("drifted" in note for note in again.notes)
    assert is_kept or has_drifted, "a busy machine may drift, but then it is said"


def test_answers_are_checked_copies() -> None:
    with MeasuringProgram() as child:
        names = [entry["name"] for entry in child.devices()]
        assert names[0] == "cpu" or "cpu" in names
        answers: list[dict[str, object]] = []
        tasks = (
            Task(do="copy", devices=("cpu", "cpu"), size_bytes=1 << 20, repetitions=2),
            Task(do="together", flows=(("cpu", "cpu"), ("cpu", "cpu")), size_bytes=1 << 16, repetitions=2),
            Task(do="dance"),
        )
        assert child.run(tasks, budget_s=60.0, on_result=lambda _, answer: answers.append(answer)) is None
    copy, together, dance = answers
    assert copy["way"] == "directly"
    assert not copy["is_corrupt"]
    assert together["detail"] == "2 copies at once"
    assert "unknown measurement 'dance'" in str(dance["error"])


def test_a_child_that_hangs_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.hardware.probes.child._LEAST_TASK_S", 0.2)
    command = script(tmp_path, HELLO + "sys.stdin.readline()\ntime.sleep(600)\n")
    with MeasuringProgram(command) as child:
        child.devices()
        with pytest.raises(MeasuringFailed, match="no answer for 0 s while copy a to b"):
            child.run((Task(do="copy", devices=("a", "b")),), budget_s=0.1, on_result=lambda *_: None)


def test_a_child_that_dies_is_quoted(tmp_path: Path) -> None:
    command = script(tmp_path, 'sys.exit("the driver is on fire")\n')
    with MeasuringProgram(command) as child, pytest.raises(MeasuringFailed, match="the driver is on fire"):
        child.devices()


def test_chatter_on_stdout_is_skipped_and_time_runs_out(tmp_path: Path) -> None:
    text = 'print("hello from a driver", flush=True)\n' + HELLO
    text += 'for line in sys.stdin: print("noise\\n" + json.dumps({"value": 1}), flush=True)\n'
    with MeasuringProgram(script(tmp_path, text)) as child:
        assert child.devices()[0]["name"] == "cpu"
        answers: list[object] = []
        stopped = child.run((Task(do="x"),) * 3, budget_s=0.0, on_result=lambda _, answer: answers.append(answer))
        assert stopped == "time was over after 0 of 3 measurements"
        assert child.run((Task(do="x"),) * 2, budget_s=60.0, on_result=lambda _, a: answers.append(a)) is None
        assert answers == [{"value": 1}, {"value": 1}]


@pytest.fixture
def answering() -> Iterator[tuple[Answerer, threading.Thread]]:
    found = Answerer()
    worker = threading.Thread(target=found.serve)
    worker.start()
    yield found, worker
    found.close()
    worker.join(30)
    assert not worker.is_alive()


def test_loopback_is_measured_both_ways(answering: tuple[Answerer, threading.Thread]) -> None:
    answerer, worker = answering
    found = measure_peer(*answerer.address, seconds=0.8, streams=(1, 2), is_last=True)
    assert found.out_bytes_per_s > 1e6
    assert found.back_bytes_per_s > 1e6
    assert 0 < found.latency_s < 1
    assert found.streams in {1, 2}
    worker.join(30)  # it ends once it has counted the last round
    assert answerer.rounds == 1 + 2 * (1 + 2) + 1


def test_nobody_there_is_said() -> None:
    unused = Answerer()
    host, port = unused.address
    unused.close()
    with pytest.raises(PeerUnreachable, match=f"no answer to a measurement from {host}:{port}"):
        measure_peer(host, port, seconds=0.1)


@pytest.mark.slow
def test_the_program_speaks_json_lines_alone() -> None:
    asked = json.dumps({"do": "memory", "devices": ["cpu"], "size_bytes": 4096, "repetitions": 1})
    words = [sys.executable, "-m", "plait.train.measure"]
    done = subprocess.run(words, input=asked + "\n", capture_output=True, text=True, check=True)
    hello, answer = (json.loads(line) for line in done.stdout.splitlines())
    assert hello["devices"]
    assert answer["value"] > 0


@pytest.mark.root
@pytest.mark.slow
def test_a_shaped_link_is_measured_within_a_quarter() -> None:
    from plait.engines.emulation.hosts import EmulatedHosts, Host
    from plait.engines.emulation.network import missing_tools

    if missing_tools() or shutil.which("nsenter") is None:
        pytest.skip("network namespaces need ip, tc, unshare and nsenter")
    rate = 25e6
    hosts = EmulatedHosts([Host(name="a", up=rate, down=rate), Host(name="b")])
    hosts.open()
    try:
        if hosts.limitations:
            pytest.skip(f"links cannot be shaped here: {hosts.limitations[0]}")
        answer = hosts.enter(
            "b", [sys.executable, "-m", "plait.cli.main", "topology", "--answer", f"{hosts.address('b')}:18515"]
        )
        there = subprocess.Popen(
            answer.command, pass_fds=answer.descriptors, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert there.stdout is not None
            assert "answering" in there.stdout.readline()
            code = (
                "import json, dataclasses; from plait.hardware.probes.network import measure_peer; "
                f"found = measure_peer({hosts.address('b')!r}, 18515, seconds=6, is_last=True); "
                "print(json.dumps(dataclasses.asdict(found)))"
            )
            here = hosts.enter("a", [sys.executable, "-c", code])
            done = subprocess.run(
                here.command, pass_fds=here.descriptors, capture_output=True, text=True, check=True, timeout=90
            )
            there.wait(30)
        finally:
            if there.poll() is None:
                there.kill()
                there.wait()
            assert there.stdout is not None
            there.stdout.close()
    finally:
        hosts.close()
    found = json.loads(done.stdout)
    assert found["out_bytes_per_s"] == pytest.approx(rate, rel=0.25)
    assert found["back_bytes_per_s"] == pytest.approx(rate, rel=0.25)
