"""Greedy placement on its own."""

from plait.hardware.device import Device, Node
from plait.schedule.domain import Allocation, Placement
from plait.schedule.placement.greedy import FreeNode, Unplaced, place


def _free(name: str, kinds: str, *, speed: float = 1.0, ports: int = 8, local_ranks: tuple[int, ...] = ()) -> FreeNode:
    devices = tuple(
        Device(id=f"{name}/{i}", node=name, index=i, accelerator_type=kind, speed=speed)
        for i, kind in enumerate(kinds.split())
    )
    node = Node(id=name, address=name, devices=devices)
    return FreeNode(
        node=node,
        devices=devices,
        ports=tuple(range(21000, 21000 + 2 * ports, 2)),
        local_ranks=frozenset(local_ranks),
    )


def _placed(found: Placement | Unplaced) -> Placement:
    assert isinstance(found, Placement)
    return found


def test_ranks_go_node_by_node_though_types_alternate() -> None:
    nodes = [_free("n0", "A100 T4 T4"), _free("n1", "A100 A100 T4")]
    found = _placed(place(Allocation(counts=(("A100", 3), ("T4", 3))), {}, nodes))
    assert [(w.rank, w.node, w.local_rank, w.accelerator_type) for w in found.workers] == [
        (0, "n1", 0, "A100"),
        (1, "n1", 1, "A100"),
        (2, "n1", 2, "T4"),
        (3, "n0", 0, "A100"),
        (4, "n0", 1, "T4"),
        (5, "n0", 2, "T4"),
    ]


def test_devices_of_a_worker_lie_together() -> None:
    devices = tuple(
        Device(id=f"n0/{i}", node="n0", index=i, accelerator_type="A100", numa_node=i % 2) for i in range(4)
    )
    node = FreeNode(node=Node(id="n0", address="n0", devices=devices), devices=devices, ports=(1, 3))
    found = _placed(place(Allocation(counts=(("A100", 2),)), {"A100": 2}, [node]))
    assert [w.device_ids for w in found.workers] == [("n0/0", "n0/2"), ("n0/1", "n0/3")]


def test_a_joiner_goes_where_its_gang_is_and_takes_the_lowest_free_local_rank() -> None:
    nodes = [_free("n0", "A100"), _free("n1", "A100", local_ranks=(0, 2))]
    found = _placed(place(Allocation(counts=(("A100", 1),)), {}, nodes, next_worker=5))
    (worker,) = found.workers
    assert (worker.worker_id, worker.rank, worker.node, worker.local_rank) == ("w5", 5, "n1", 1)


def test_all_or_nothing_unless_a_part_is_asked_for() -> None:
    nodes = [_free("n0", "A100 A100 A100"), _free("n1", "A100")]
    wanted = Allocation(counts=(("A100", 2),))
    refused = place(wanted, {"A100": 2}, nodes)
    assert refused == Unplaced(reason="4 A100 are free, but only 1 of 2 workers find 2 of them on one node")
    assert len(_placed(place(wanted, {"A100": 2}, nodes, partial=True)).workers) == 1
    assert place(wanted, {"A100": 2}, [], partial=True) == Unplaced(reason="no node has room for one more worker")


def test_a_node_without_ports_is_no_place() -> None:
    nodes = [_free("n0", "A100 A100", ports=1)]
    assert isinstance(place(Allocation(counts=(("A100", 2),)), {}, nodes), Unplaced)


def test_reasons_say_where_and_why() -> None:
    nodes = [_free("n0", "A100 A100"), _free("n1", "A100")]
    found = _placed(place(Allocation(counts=(("A100", 1),)), {}, nodes))
    assert found.reasons == (
        "1 x A100: 1 on n1 (as few nodes as hold them, the tightest first; 1 other nodes had room)",
        "n0 not used for A100: room for 2: a tighter node holds them, and leaves this one whole for larger gangs",
    )
