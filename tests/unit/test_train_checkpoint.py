import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from plait.train.checkpoint.checkpointer import (
    CheckpointDamaged,
    Checkpointer,
    CheckpointUnsupported,
    directory_of,
)
from plait.train.checkpoint.repository import CheckpointFenced
from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings
from plait.train.checkpoint.tree import bytes_of, described, raw_bytes, rebuilt

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool]
DTYPES += [torch.uint8, torch.complex64, torch.float8_e4m3fn]


def random_tensor(shape: list[int], dtype: torch.dtype, seed: int, transposed: bool) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    num_bytes = dtype.itemsize * int(torch.tensor(shape).prod()) if shape else dtype.itemsize
    high = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, high, (num_bytes,), generator=generator, dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape) if num_bytes else torch.empty(shape, dtype=dtype)
    return tensor.transpose(0, -1) if transposed and len(shape) > 1 else tensor


tensors = st.builds(
    random_tensor,
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 2**31),
    st.booleans(),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**80), 2**80),
    st.floats(allow_nan=False),
    st.text(max_size=8),
)
keys = st.one_of(st.text(max_size=5), st.integers(), st.tuples(st.integers(), st.text(max_size=2)))
states = st.recursive(
    st.one_of(scalars, tensors),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
    ),
    max_leaves=10,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bytes(raw_bytes(a)) == bytes(raw_bytes(b))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@given(states)
@settings(max_examples=150, deadline=None)
def test_any_state_comes_back_as_it_was(state: Any) -> None:
    form, parts = described(state)
    stream = iter(parts)

    def read(num_bytes: int) -> Tensor:
        data = torch.empty(num_bytes, dtype=torch.uint8)
        if source := bytes(raw_bytes(next(stream))):
            bytes_of(data)[:] = source
        return data

    assert same(rebuilt(json.loads(json.dumps(form)), read), state)


def test_special_floats_come_back() -> None:
    form, _ = described([float("inf"), float("-inf"), float("nan"), -0.0, 5e-324, 0.1])
    back = rebuilt(json.loads(json.dumps(form, allow_nan=False)), lambda n: torch.empty(n, dtype=torch.uint8))
    assert [value.hex() if value == value else "nan" for value in back] == [  # noqa: PLR0124 - nan
        "inf", "-inf", "nan", "-0x0.0p+0", (5e-324).hex(), (0.1).hex(),
    ]  # fmt: skip


@pytest.fixture
def opened() -> Iterator[Callable[..., SnapshotCheckpointer]]:
    made: list[SnapshotCheckpointer] = []

    def make(place: object, keep: int = 3) -> SnapshotCheckpointer:
        made.append(SnapshotCheckpointer(SnapshotSettings(url=str(place), keep=keep)))
        return made[-1]

    yield make
    for checkpointer in made:
        checkpointer.close()


def commits(place: Path) -> list[Path]:
    return sorted((place / "commits").iterdir())


@given(states)
@settings(max_examples=60, deadline=None)
def test_any_state_comes_back_from_shared_memory(state: Any) -> None:
    from plait.train.checkpoint.arena import Arena
    from plait.train.checkpoint.restore import snapshot_state

    arena = Arena(state)
    assert arena.snapshot(state, step=3, generation=2) is not None
    found = snapshot_state(arena.segment)
    assert found is not None
    assert found[:2] == (2, 3)
    assert same(found[2], state)
    arena.close()


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def test_model_and_optimizer_go_on_bit_for_bit(tmp_path: Path, opened: Callable[..., SnapshotCheckpointer]) -> None:
    model, optimizer = trained()
    checkpointer: Checkpointer = opened(f"file://{tmp_path}/a%20b")
    checkpointer.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, 7)
    loaded = checkpointer.load()
    assert (tmp_path / "a b").is_dir()
    assert loaded is not None
    other, other_optimizer = trained()
    with torch.no_grad():
        other[0].weight.zero_()  # type: ignore[index]
    other.load_state_dict(loaded.state["model"])
    other_optimizer.load_state_dict(loaded.state["optimizer"])
    x = torch.randn(5, 4)
    for m, o in ((model, optimizer), (other, other_optimizer)):
        o.zero_grad()
        m(x).square().sum().backward()
        o.step()
    assert same(dict(model.state_dict()), dict(other.state_dict()))


def test_the_last_ones_are_kept_and_the_newest_is_found(
    tmp_path: Path, opened: Callable[..., SnapshotCheckpointer]
) -> None:
    checkpointer = opened(tmp_path, keep=2)
    assert checkpointer.latest() is None
    assert checkpointer.load() is None
    x = torch.arange(6.0).reshape(2, 3).t()
    for step in (5, 10, 1_000_000_000_000):
        checkpointer.save({"x": x, "step": step}, step)
        x.add_(1)  # what training does next is not in the checkpoint
    checkpointer.wait()
    assert checkpointer.durable_step == 1_000_000_000_000
    assert [path.name[-18:-5] for path in commits(tmp_path)][-1] == "1000000000000"
    assert len(commits(tmp_path)) == len(list((tmp_path / "data").iterdir())) == 2
    loaded = checkpointer.load(10)
    assert loaded is not None
    assert loaded.state["x"].tolist() == [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("damage", [flip, cut, lengthen, Path.unlink])
@pytest.mark.parametrize("suffix", ["safetensors", "json", "commit"])
def test_damage_is_found_and_the_one_before_is_taken(
    tmp_path: Path, opened: Callable[..., SnapshotCheckpointer], suffix: str, damage: Callable[[Path], object]
) -> None:
    checkpointer = opened(tmp_path)
    for step in (1, 2):
        checkpointer.save({"x": torch.full((9,), step), "step": step}, step)
    checkpointer.wait()
    checkpointer.close()
    newest = commits(tmp_path)[-1]
    damaged = newest if suffix == "commit" else next((tmp_path / "data").glob(f"{2:012d}-*/*.{suffix}"))
    damage(damaged)
    loaded = checkpointer.load()
    assert loaded is not None
    assert loaded.step == 1
    assert loaded.state["x"].tolist() == [1] * 9
    if not (suffix == "commit" and damage is Path.unlink):  # without its commit there is no checkpoint to tell of
        assert newest.name in loaded.skipped[0]
    with pytest.raises(CheckpointDamaged):
        checkpointer.load(2)


def test_a_run_does_not_start_over_when_all_are_damaged(
    tmp_path: Path, opened: Callable[..., SnapshotCheckpointer]
) -> None:
    checkpointer = opened(tmp_path)
    checkpointer.save({"x": torch.ones(3)}, 1)
    checkpointer.close()
    cut(next((tmp_path / "data").glob("*/*.safetensors")))
    assert checkpointer.latest() is None
    with pytest.raises(CheckpointDamaged, match="bytes instead of"):
        checkpointer.load()


def test_a_run_that_was_taken_over_from_is_told(tmp_path: Path, opened: Callable[..., SnapshotCheckpointer]) -> None:
    first, second = opened(tmp_path), opened(f"file://{tmp_path}")
    first.save({"x": torch.ones(3)}, 1)
    first.wait()
    assert second.load() is not None
    second.save({"x": torch.zeros(3)}, 2)
    second.wait()
    first.save({"x": torch.ones(3)}, 9)
    with pytest.raises(CheckpointFenced, match="another run has taken over"):
        first.wait()
    loaded = second.load()
    assert loaded is not None
    assert loaded.step == 2


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [1, {2}]}, r"state\['a'\]\[1\] is a set"),
        ({"f": print}, r"state\['f'\] is a builtin_function_or_method"),
        ({b"k": 1}, "has the key b'k', a bytes"),
        ([torch.empty(2, device="meta")], r"state\[0\] is a sparse, quantised or meta tensor"),
    ],
)
def test_what_cannot_be_held_is_refused_with_its_place(
    tmp_path: Path, opened: Callable[..., SnapshotCheckpointer], state: Any, message: str
) -> None:
    with pytest.raises(CheckpointUnsupported, match=message):
        opened(tmp_path / "new").save(state, 1)
    assert not (tmp_path / "new").exists()


def test_urls(opened: Callable[..., SnapshotCheckpointer]) -> None:
    assert directory_of("file:///a/b%20c") == "/a/b c"
    assert directory_of("runs/x") == "runs/x"
    with pytest.raises(CheckpointUnsupported, match=r"checkpoint\.url is"):
        directory_of("file://other-host/x")
    with pytest.raises(ValueError, match="step of a checkpoint is -1"):
        opened("x").save({}, -1)


TRAINER = """
import itertools, sys, torch
from plait.train.checkpoint.snapshots import SnapshotCheckpointer, SnapshotSettings
c = SnapshotCheckpointer(SnapshotSettings(url=sys.argv[1], keep=2))
c.load()
for step in itertools.count(1):
    state = {"x": torch.full((200_000,), float(step))}
    c.snapshot(state, step)
    if step % 4 == 1:
        c.save(state, step)
        c.wait()
    print(step, flush=True)
"""


@pytest.mark.parametrize("told", [1, 4, 11])
def test_the_last_snapshot_of_a_killed_trainer_is_made_durable(tmp_path: Path, told: int) -> None:
    with subprocess.Popen([sys.executable, "-c", TRAINER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(told):
            last = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.stdout.read()
    after = SnapshotCheckpointer(SnapshotSettings(url=str(tmp_path)))
    loaded = after.load()  # from shared memory while the saver still holds it, from the disk afterwards
    assert loaded is not None
    assert loaded.step >= last
    assert loaded.state["x"].tolist() == [float(loaded.step)] * 200_000


def test_a_save_that_fails_does_not_end_the_run(
    tmp_path: Path, opened: Callable[..., SnapshotCheckpointer], caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = opened(tmp_path / "place")
    checkpointer.save({"x": 1, "t": torch.ones(2)}, 1)
    checkpointer.wait()
    shutil.rmtree(tmp_path / "place")
    (tmp_path / "place").write_text("in the way")
    checkpointer.save({"x": 1, "t": torch.ones(2)}, 2)
    checkpointer.wait()
    assert "the run goes on" in caplog.text
    assert checkpointer.durable_step == 1


def test_a_killed_saver_is_replaced(tmp_path: Path, opened: Callable[..., SnapshotCheckpointer]) -> None:
    checkpointer = opened(tmp_path)
    checkpointer.save({"t": torch.ones(2)}, 1)
    checkpointer.wait()
    assert checkpointer.saver_pid is not None
    os.kill(checkpointer.saver_pid, signal.SIGKILL)
    for step in (2, 3):  # the first of them may find the dead one
        checkpointer.save({"t": torch.ones(2)}, step)
        checkpointer.wait()
    assert checkpointer.durable_step == 3
    assert [n.step for n in checkpointer.repository().names()] in ([3, 2, 1], [3, 1])


def test_a_checkpoint_is_read_into_the_tensors_that_are_there(
    tmp_path: Path, opened: Callable[..., SnapshotCheckpointer]
) -> None:
    saved = {
        "model": {"weight": torch.arange(600_000, dtype=torch.float32).reshape(600, 1000), "bias": torch.ones(3)},
        "optimizer": {"m": torch.full((5, 7), 2.0, dtype=torch.float64), "steps": torch.tensor([3, 4])},
        "step": 9,
    }
    saver = opened(tmp_path)
    saver.save(saved, 9)
    saver.wait()
    mine = {
        "model": {"weight": torch.zeros(600, 1000), "bias": torch.zeros(4)},  # bias has another shape
        "optimizer": {"m": torch.zeros(7, 5, dtype=torch.float64).t()},  # not in one piece; steps are not there yet
    }
    loaded = opened(tmp_path).load(into=mine)
    assert loaded is not None
    assert same(loaded.state, saved)
    assert loaded.state["model"]["weight"].data_ptr() == mine["model"]["weight"].data_ptr()
    assert torch.equal(mine["model"]["bias"], torch.zeros(4))
