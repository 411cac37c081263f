"""Durable writes: the saver's way to local disk against dcp.save and plain direct writes, and S3 against obstore.

``cpu_s_per_gb`` is CPU time of the writing process for a GB that is hashed, written and flushed. ``rate_over_dcp`` and
``rate_over_direct`` compare durable bytes a second with ``dcp.save`` and with unhashed O_DIRECT writes (what ``dd
oflag=direct conv=fsync`` does) of the same bytes. ``restore_over_obstore`` is the rate of a verified restore into the
tensors that a trainer has, over that of range reads whose bytes are thrown away (many at once by obstore, or by
threads: the faster); the same into new memory is told beside it. Methods take turns; figures are medians over rounds.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from ckpt_stall import gpt_state, size_of, work_directory
from object_server import ServerMissing, environment, seaweedfs
from report import arguments, finish


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Returns wall and CPU seconds of this process."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s


def main() -> int:  # noqa: C901 - one measurement, told in order
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=500, help="size of the state")
    options = parser.parse_args()
    import torch
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

    from plait.train.checkpoint.arena import Arena
    from plait.train.checkpoint.index import decoded
    from plait.train.checkpoint.repository import Claim, Repository
    from plait.train.checkpoint.stores import CHUNK_BYTES, FileStore, Store

    torch.set_num_threads(1)
    state = gpt_state(options.megabytes)
    num_bytes = size_of(state)
    rounds = 3 if options.quick else 9
    arena = Arena(state, num_slots=1)
    taken = arena.snapshot(state, step=1)
    assert taken is not None
    slot, record = taken
    index, data = decoded(arena.segment.index(slot, record.index_bytes)), arena.segment.data(slot)

    def ready(store: Store) -> Callable[[], None]:
        """Returns what is done for each save; the claim is taken once a run."""
        repository = Repository(store)
        claim = repository.claim(None)
        return lambda: commit(repository, claim)

    def commit(repository: Repository, claim: Claim) -> None:
        prefix = repository.prefix(claim, 1)
        receipt = repository.write(prefix, 0, index, data, record.data_bytes)
        repository.commit(claim, 1, prefix, [receipt])

    figures: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    with work_directory() as directory:

        def direct() -> None:
            handle = os.open(directory / "direct", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
            with contextlib.closing(os.fdopen(handle, "wb", buffering=0)):
                for first in range(0, len(data), CHUNK_BYTES):
                    os.pwrite(handle, data[first : first + CHUNK_BYTES], first)
                os.fsync(handle)

        saves: dict[str, Callable[[], None]] = {}
        methods: dict[str, Callable[[], Any]] = {
            "plait": lambda: saves["plait"](),  # noqa: PLW0108 - another one each round
            "dcp.save": lambda: dcp_save(state, checkpoint_id=directory / "dcp", no_dist=True),
            "direct, no hash": direct,
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
        for number in range(rounds + 1):
            for name in list(methods) if number % 2 else list(methods)[::-1]:
                for old in directory.iterdir():
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
                if name == "plait":
                    saves["plait"] = ready(FileStore(directory / "plait"))
                took = timed(methods[name])
                if number:  # the first round warms up
                    found[name].append(took)
    gigabytes = num_bytes / 1e9
    print(f"  {num_bytes / 1e6:.0f} MB, {rounds} rounds   MB/s   CPU s/GB")
    wall, cpu = ({n: median(t[i] for t in times) for n, times in found.items()} for i in (0, 1))
    for name in methods:
        print(f"  {name:22s} {num_bytes / 1e6 / wall[name]:8.0f} {cpu[name] / gigabytes:8.2f}")
    figures["cpu_s_per_gb"] = cpu["plait"] / gigabytes
    figures["dcp_cpu_s_per_gb"] = cpu["dcp.save"] / gigabytes
    figures["rate_over_dcp"] = median(d[0] / p[0] for p, d in zip(found["plait"], found["dcp.save"], strict=True))
    figures["rate_over_direct"] = median(
        d[0] / p[0] for p, d in zip(found["plait"], found["direct, no hash"], strict=True)
    )
    try:
        figures |= against_server(ready, state, data, record.data_bytes, 2 if options.quick else 5)
    except ServerMissing as error:
        for name in ("upload_over_obstore", "restore_over_obstore", "restore_in_new_memory_over_obstore"):
            figures[name], reasons[name] = None, str(error)
    finish("ckpt_write", options.quick, figures, reasons, options.json)
    return 0


def against_server(
    ready: Callable[[Any], Callable[[], None]], state: Any, data: memoryview, num_bytes: int, rounds: int
) -> dict[str, float | None]:
    """Returns rates of save and restore over those of obstore's put and range reads alone, the faster way of two."""
    import obstore

    from plait.train.checkpoint.nearest import load
    from plait.train.checkpoint.object_store import PART_BYTES, ObjectStore
    from plait.train.checkpoint.repository import Repository

    found: dict[str, list[float]] = {"put": [], "save": [], "ranges": [], "load": [], "load, new memory": []}
    with seaweedfs() as endpoint:
        os.environ.update(environment(endpoint))
        for number in range(rounds + 1):
            store, raw = ObjectStore(f"s3://ckpt/run{number}"), ObjectStore("s3://ckpt/raw")
            body = bytes(data[:num_bytes])

            def put(client: Any = raw.client, body: bytes = body) -> None:
                obstore.put(client, "x", body, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=4)

            def get(into: Any = None, store: ObjectStore = store) -> None:
                assert load(Repository(store), into=into) is not None

            took = {"put": timed(put)[0], "save": timed(ready(store))[0]}
            reads: dict[str, Callable[[], None]] = {
                "ranges by get_ranges": lambda client=raw.client: _ranges_at_once(client, num_bytes),  # type: ignore[misc]
                "load": lambda get=get: get(state),  # type: ignore[misc]
                "ranges by threads": lambda client=raw.client: _ranges_by_threads(client, num_bytes),  # type: ignore[misc]
                "load, new memory": get,
            }
            for name in list(reads) if number % 2 else list(reads)[::-1]:
                took[name] = timed(reads[name])[0]
            took["ranges"] = min(took.pop("ranges by get_ranges"), took.pop("ranges by threads"))
            if number:  # the first round warms up
                for name, one in took.items():
                    found[name].append(one)
            raw.delete(["x"])
            store.delete([entry.key for entry in store.list("")])
    for name, times in found.items():
        print(f"  S3 {name:19s} {num_bytes / 1e6 / median(times):8.0f}")

    def over(ours: str, theirs: str) -> float:
        return median(b / a for a, b in zip(found[ours], found[theirs], strict=True))

    return {
        "upload_over_obstore": over("save", "put"),
        "restore_over_obstore": over("load", "ranges"),
        "restore_in_new_memory_over_obstore": over("load, new memory", "ranges"),
    }


def _ranges_at_once(client: Any, num_bytes: int) -> None:
    import obstore

    from plait.train.checkpoint.reading import READ_BYTES

    for first in range(0, num_bytes, 8 * READ_BYTES):
        starts = list(range(first, min(first + 8 * READ_BYTES, num_bytes), READ_BYTES))
        ends = [min(start + READ_BYTES, num_bytes) for start in starts]
        obstore.get_ranges(client, "x", starts=starts, ends=ends, coalesce=0)


def _ranges_by_threads(client: Any, num_bytes: int) -> None:
    import obstore

    from plait.train.checkpoint.reading import READ_BYTES

    size = 2 * READ_BYTES
    with ThreadPoolExecutor(max_workers=6) as readers:
        ends = [min(first + size, num_bytes) for first in range(0, num_bytes, size)]
        for _ in readers.map(lambda end: obstore.get_range(client, "x", start=(end - 1) // size * size, end=end), ends):
            pass


if __name__ == "__main__":
    sys.exit(main())
