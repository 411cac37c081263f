"""Small sums over the mesh of a generation: bits, order, large frames, ends of peers, strangers."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plait.train.collectives.mesh import MOST_ONE_HOP_BYTES, Mesh, MeshBroken, MeshSum, Peer, bounds
from plait.train.collectives.mesh_builder import MeshBuilder
from plait.train.collectives.sockets import control_of, reset, retries_of, unconfirmed_bytes


def at_once(tasks: list[Callable[[], Mesh]]) -> list[Mesh]:
    """Runs the tasks in threads of their own and returns what they return."""
    results: dict[int, Mesh] = {}
    threads = [
        threading.Thread(target=lambda n, task: results.update({n: task()}), args=(n, task), daemon=True)
        for n, task in enumerate(tasks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [results[n] for n in range(len(tasks))]


Meshes = Callable[[int], AbstractContextManager[list[Mesh]]]
Finish = Callable[[Sequence[MeshSum]], None]


def added(rows: list[Tensor]) -> Tensor:
    """The reference: a plain sum in the order of ranks."""
    total = rows[0].clone()
    for row in rows[1:]:
        total = total + row
    return total


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(2, 5),
    lengths=st.lists(st.sampled_from([1, 3, 40, 9000, 70_001]), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64]),
    seed=st.integers(0, 2**31),
)
def test_all_members_get_the_bits_of_a_sum_in_the_order_of_ranks(
    size: int, lengths: list[int], dtype: torch.dtype, seed: int, *, meshes: Meshes, finish: Finish
) -> None:
    generator = torch.Generator().manual_seed(seed)
    with meshes(size) as group:
        rows = [[(torch.randn(n, generator=generator) * 100).to(dtype) for n in lengths] for _ in range(size)]
        expected = [added([rows[rank][i] for rank in range(size)]) for i in range(len(lengths))]
        works = [group[rank].all_reduce(tensor) for rank in range(size) for tensor in rows[rank]]
        finish(works)
    for row in rows:
        for tensor, total in zip(row, expected, strict=True):
            assert torch.equal(tensor, total)


def test_a_sum_on_a_view_lands_in_the_view(meshes: Meshes, finish: Finish) -> None:
    with meshes(2) as group:
        wholes = [torch.zeros(4, 4), torch.zeros(4, 4)]
        for whole in wholes:
            whole[:, 1] = 1.5
        finish([group[rank].all_reduce(wholes[rank][:, 1]) for rank in range(2)])
    assert all(torch.equal(whole[:, 1], torch.full((4,), 3.0)) and whole.sum() == 12.0 for whole in wholes)


def test_a_member_that_is_ahead_is_heard_later(meshes: Meshes, finish: Finish) -> None:
    """One member starts both its sums before the other has started its first."""
    with meshes(2) as group:
        ahead = [group[0].all_reduce(torch.tensor([1.0])), group[0].all_reduce(torch.tensor([2.0]))]
        assert not ahead[0].is_completed()
        group[1].take(1.0)
        behind = [group[1].all_reduce(torch.tensor([10.0])), group[1].all_reduce(torch.tensor([20.0]))]
        finish(ahead + behind)
    assert [float(w.tensor) for w in ahead] == [11.0, 22.0] == [float(w.tensor) for w in behind]


def test_what_a_peer_sent_before_its_end_counts_and_then_its_end_is_told(meshes: Meshes, finish: Finish) -> None:
    with meshes(2) as group:
        group[1].all_reduce(torch.tensor([2.0]))
        group[1].close()
        last = group[0].all_reduce(torch.tensor([1.0]))
        finish([last])
        last.wait()
        assert float(last.tensor) == 3.0
        with pytest.raises(MeshBroken):
            group[0].all_reduce(torch.tensor([1.0])).wait(timedelta(seconds=10))


def test_a_time_out_leaves_the_sum_on_its_way(meshes: Meshes, finish: Finish) -> None:
    with meshes(2) as group:
        early = group[0].all_reduce(torch.tensor([1.0]))
        with pytest.raises(RuntimeError, match="not complete"):
            early.wait(timedelta(milliseconds=1))
        finish([early, group[1].all_reduce(torch.tensor([2.0]))])
        assert float(early.tensor) == 3.0


def test_giving_up_ends_sums_on_both_sides(meshes: Meshes, finish: Finish) -> None:
    with meshes(2) as group:
        mine, theirs = group[0].all_reduce(torch.ones(3)), group[1].all_reduce(torch.ones(3))
        pending = group[0].all_reduce(torch.ones(3))
        finish([mine, theirs])
        group[0].close()
        with pytest.raises(MeshBroken):
            pending.wait(timedelta(seconds=10))
        group[1].all_reduce(torch.ones(3)).wait(timedelta(seconds=10))  # the part of the other one was sent
        with pytest.raises(MeshBroken):
            group[1].all_reduce(torch.ones(3)).wait(timedelta(seconds=10))


def test_members_that_sum_unlike_tensors_are_refused(meshes: Meshes) -> None:
    with meshes(2) as group:
        group[1].all_reduce(torch.ones(4))
        with pytest.raises(MeshBroken, match="sent 16 bytes where 12 were expected"):
            group[0].all_reduce(torch.ones(3)).wait(timedelta(seconds=10))


def test_what_the_kernel_does_not_take_is_owed_until_it_has_left(meshes: Meshes, finish: Finish) -> None:
    big = MOST_ONE_HOP_BYTES * 512
    with meshes(2) as group:
        work = group[0].all_reduce(torch.ones(big // 4))
        assert group[0].owes()
        assert not work.is_completed()
        finish([work, group[1].all_reduce(torch.ones(big // 4))])
        assert not group[0].owes()
        assert bool((work.tensor == 2.0).all())


def when_some_came(peer: Peer) -> list[tuple[tuple[int, int], int, bytearray]]:
    peer.connection.setblocking(True)
    peer.connection.recv(1, socket.MSG_PEEK)
    peer.connection.setblocking(False)
    return peer.receive()


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 19, 20, 21, 2**14 - 20, 2**14, 2**14 + 1, 50_000]), max_size=6),
    cuts=st.lists(st.floats(0.0, 1.0), max_size=8),
)
def test_frames_come_whole_however_the_stream_is_cut(lengths: list[int], cuts: list[float]) -> None:
    sent = [((number, 3), number % 2, bytes([number + 1]) * length) for number, length in enumerate(lengths)]
    stream = b"".join(struct.pack(">IIQI", len(data), *key, hop) + data for key, hop, data in sent)
    ends = sorted({*(int(cut * len(stream)) for cut in cuts), 0, len(stream)})
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as far:
        near, _ = server.accept()
        with near:
            peer, found = Peer(near, 1), []
            for first, end in pairwise(ends):
                far.sendall(stream[first:end])
                found += when_some_came(peer)
            while len(found) < len(sent):
                found += when_some_came(peer)
    assert [(key, hop, bytes(data)) for key, hop, data in found] == sent


def test_long_streams_are_steady_and_a_chosen_control_stays(meshes: Meshes, finish: Finish) -> None:
    known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
    if not {"bbr", "cubic", "reno"} <= set(known):
        pytest.skip(f"this kernel offers {' '.join(known)}, which leaves nothing to choose")
    with meshes(3) as group:
        for rank, control in ((1, b"bbr"), (2, b"reno")):
            group[0].peers[rank].connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control)
        group[0].steady()
        assert [control_of(peer.connection) for peer in group[0].peers.values()] == ["cubic", "reno"]
        finish([mesh.all_reduce(torch.ones(100_000)) for mesh in group])


def test_a_closed_connection_needs_no_control(meshes: Meshes) -> None:
    with meshes(2) as group:
        group[0].close()
        group[0].steady()
        with pytest.raises(OSError, match="Bad file descriptor"):
            control_of(group[0].peers[1].connection)


def test_a_stranger_is_not_let_in(finish: Finish) -> None:
    builders = [MeshBuilder("127.0.0.1", rank, 2, token) for rank, token in ((0, "token"), (1, "token"))]
    host, port = builders[0].address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(b"\x00\x01" + b"x" * 32)
        addresses = [builder.address for builder in builders]
        made = at_once([partial(b.connect, addresses.__getitem__, 10.0) for b in builders])
        stranger.settimeout(10.0)
        assert stranger.recv(1) == b""
        finish([mesh.all_reduce(torch.ones(1)) for mesh in made])
    for mesh in made:
        mesh.close()


@given(length=st.integers(0, 10_000), parts=st.integers(1, 17))
def test_parts_cover_everything_once(length: int, parts: int) -> None:
    ends = bounds(length, parts)
    assert ends[0] == 0
    assert ends[-1] == length
    sizes = [b - a for a, b in pairwise(ends)]
    assert max(sizes) - min(sizes) <= 1


def test_a_connection_that_is_reset_names_its_other_end_at_both_ends(meshes: Meshes) -> None:
    with meshes(3) as group:
        works = [mesh.all_reduce(torch.ones(100_000)) for mesh in group]
        reset(group[0].peers[2].connection)
        for rank, other in ((0, 2), (2, 0)):
            with pytest.raises(MeshBroken, match=f"connection to member {other} broke") as caught:
                works[rank].wait(timedelta(seconds=20))
            assert caught.value.rank == other
        assert group[1].broken is None
        assert retries_of(group[1].peers[0].connection) == 0
        assert group[1].stuck(1) is None


def test_what_a_peer_has_not_confirmed_is_counted(meshes: Meshes) -> None:
    with meshes(2) as (mine, theirs):
        assert theirs.rank == 1
        peer = mine.peers[1].connection
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += peer.send(bytes(1 << 16))
        assert 0 < unconfirmed_bytes(peer) <= sent
    assert unconfirmed_bytes(peer) == retries_of(peer) == 0, "nothing is known of a closed one"
    with pytest.raises(OSError, match="descriptor"):
        reset(peer)
