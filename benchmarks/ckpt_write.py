"""Durable writes: the saver's way to local disk against dcp.save and plain direct writes, and S3 against obstore.

``cpu_s_per_gb`` is CPU time of the writing process for a GB that is hashed, written and flushed. ``rate_over_dcp`` and
``rate_over_direct`` compare durable bytes a second with ``dcp.save`` and with unhashed O_DIRECT writes (what ``dd
oflag=direct conv=fsync`` does) of the same bytes. ``restore_over_obstore`` is the rate of a verified restore into the
tensors that a trainer has, over that of range reads whose bytes are thrown away (many at once by obstore, or by
threads: the faster); the same into new memory is told beside it, and CPU time of this process for both. Methods take
turns; figures are medians over rounds.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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


class Written:
    """A snapshot of a state in shared memory, and what writes it."""

    def __init__(self, megabytes: int) -> None:
        from plait.train.checkpoint.arena import Arena
        from plait.train.checkpoint.index import decoded

        self.state = gpt_state(megabytes)
        self.num_bytes = size_of(self.state)
        self._arena = Arena(self.state, num_slots=1)
        taken = self._arena.snapshot(self.state, step=1)
        assert taken is not None
        slot, record = taken
        self.index, self.data = (
            decoded(self._arena.segment.index(slot, record.index_bytes)),
            self._arena.segment.data(slot),
        )
        self.data_bytes = record.data_bytes

    def ready(self, store: Any) -> Callable[[], None]:
        """Returns what is done for each save to a store; the claim is taken once a run."""
        from plait.train.checkpoint.repository import Repository

        repository = Repository(store)
        claim = repository.claim(None)

        def commit() -> None:
            prefix = repository.prefix(claim, 1)
            receipt = repository.write(prefix, 0, self.index, self.data, self.data_bytes)
            repository.commit(claim, 1, prefix, [receipt])

        return commit


def write_direct(path: Path, data: memoryview) -> None:
    """Writes past the page cache without a hash."""
    from plait.train.checkpoint.stores import CHUNK_BYTES

    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
    with contextlib.closing(os.fdopen(handle, "wb", buffering=0)):
        for first in range(0, len(data), CHUNK_BYTES):
            os.pwrite(handle, data[first : first + CHUNK_BYTES], first)
        os.fsync(handle)


def on_disk(written: Written, rounds: int) -> dict[str, float | None]:
    """Returns what saves to a local disk cost, beside dcp.save and plain direct writes."""
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

    from plait.train.checkpoint.stores import FileStore

    with work_directory() as directory:
        saves: dict[str, Callable[[], None]] = {}
        methods: dict[str, Callable[[], Any]] = {
            "plait": lambda: saves["plait"](),  # noqa: PLW0108 - another one each round
            "dcp.save": lambda: dcp_save(written.state, checkpoint_id=directory / "dcp", no_dist=True),
            "direct, no hash": lambda: write_direct(directory / "direct", written.data),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
        for number in range(rounds + 1):
            for name in list(methods) if number % 2 else list(methods)[::-1]:
                for old in directory.iterdir():
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
                if name == "plait":
                    saves["plait"] = written.ready(FileStore(directory / "plait"))
                took = timed(methods[name])
                if number:  # the first round warms up
                    found[name].append(took)
    gigabytes = written.num_bytes / 1e9
    print(f"  {written.num_bytes / 1e6:.0f} MB, {rounds} rounds   MB/s   CPU s/GB")
    wall, cpu = ({n: median(t[i] for t in times) for n, times in found.items()} for i in (0, 1))
    for name in methods:
        print(f"  {name:22s} {written.num_bytes / 1e6 / wall[name]:8.0f} {cpu[name] / gigabytes:8.2f}")

    def over(theirs: str) -> float:
        return median(d[0] / p[0] for p, d in zip(found["plait"], found[theirs], strict=True))

    return {
        "cpu_s_per_gb": cpu["plait"] / gigabytes,
        "dcp_cpu_s_per_gb": cpu["dcp.save"] / gigabytes,
        "rate_over_dcp": over("dcp.save"),
        "rate_over_direct": over("direct, no hash"),
    }


def main() -> int:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=500, help="size of the state")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    written = Written(options.megabytes)
    figures, reasons = on_disk(written, 3 if options.quick else 9), dict[str, str]()
    try:
        figures |= against_server(written, 2 if options.quick else 5)
    except ServerMissing as error:
        for name in SERVER_FIGURES:
            figures[name], reasons[name] = None, str(error)
    finish("ckpt_write", options.quick, figures, reasons, options.json)
    return 0


SERVER_FIGURES = (
    "upload_over_obstore", "restore_over_obstore", "restore_in_new_memory_over_obstore", "restore_cpu_s_per_gb",
    "ranges_cpu_s_per_gb",
)  # fmt: skip


def against_server(written: Written, rounds: int) -> dict[str, float | None]:
    """Returns rates of save and restore over those of obstore's put and range reads alone, the faster way of two."""
    from plait.train.checkpoint.object_store import ObjectStore

    found: dict[str, list[tuple[float, float]]] = {}
    with seaweedfs() as endpoint:
        os.environ.update(environment(endpoint))
        for number in range(rounds + 1):
            store, raw = ObjectStore(f"s3://ckpt/run{number}"), ObjectStore("s3://ckpt/raw")
            took = _round(written, store, raw, is_even=number % 2 == 0)
            if number:  # the first round warms up
                for name, one in took.items():
                    found.setdefault(name, []).append(one)
            raw.delete(["x"])
            store.delete([entry.key for entry in store.list("")])
    for name, times in found.items():
        print(f"  S3 {name:19s} {written.num_bytes / 1e6 / median(t[0] for t in times):8.0f}")

    def over(ours: str, theirs: str) -> float:
        return median(b[0] / a[0] for a, b in zip(found[ours], found[theirs], strict=True))

    def cpu(name: str) -> float:
        return median(one[1] for one in found[name]) / written.num_bytes * 1e9

    values = (
        over("save", "put"),
        over("load", "ranges"),
        over("load, new memory", "ranges"),
        cpu("load"),
        cpu("ranges"),
    )
    return dict(zip(SERVER_FIGURES, values, strict=True))


def _round(written: Written, store: Any, raw: Any, *, is_even: bool) -> dict[str, tuple[float, float]]:
    """Returns wall and CPU seconds of each method, by turns."""
    import obstore

    from plait.train.checkpoint.nearest import load
    from plait.train.checkpoint.object_store import PART_BYTES
    from plait.train.checkpoint.repository import Repository

    body, num_bytes = bytes(written.data[: written.data_bytes]), written.data_bytes

    def put() -> None:
        obstore.put(raw.client, "x", body, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=4)

    def get(into: Any = None) -> None:
        assert load(Repository(store), into=into) is not None

    took = {"put": timed(put), "save": timed(written.ready(store))}
    reads: dict[str, Callable[[], None]] = {
        "ranges by get_ranges": lambda: _ranges_at_once(raw.client, num_bytes),
        "load": lambda: get(written.state),
        "ranges by threads": lambda: _ranges_by_threads(raw.client, num_bytes),
        "load, new memory": get,
    }
    for name in list(reads)[::-1] if is_even else list(reads):
        took[name] = timed(reads[name])
    took["ranges"] = min(took.pop("ranges by get_ranges"), took.pop("ranges by threads"))
    return took


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
