import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from plait.train.checkpoint.background import BackgroundCheckpointer, copied
from plait.train.checkpoint.checkpointer import (
    CheckpointDamaged,
    Checkpointer,
    CheckpointUnsupported,
    LoadedCheckpoint,
    directory_of,
)
from plait.train.checkpoint.files import FileCheckpointer
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


@given(states)
@settings(max_examples=25, deadline=None)
def test_any_state_comes_back_from_files(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    checkpointer = FileCheckpointer(str(tmp_path_factory.mktemp("checkpoints")))
    checkpointer.save(state, 3)
    loaded = checkpointer.load()
    assert loaded is not None
    assert loaded.step == 3
    assert same(loaded.state, state)


def test_special_floats_come_back() -> None:
    form, _ = described([float("inf"), float("-inf"), float("nan"), -0.0, 5e-324, 0.1])
    back = rebuilt(json.loads(json.dumps(form, allow_nan=False)), lambda n: torch.empty(n, dtype=torch.uint8))
    assert [value.hex() if value == value else "nan" for value in back] == [  # noqa: PLR0124 - nan
        "inf", "-inf", "nan", "-0x0.0p+0", (5e-324).hex(), (0.1).hex(),
    ]  # fmt: skip


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def test_model_and_optimizer_go_on_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = trained()
    checkpointer: Checkpointer = FileCheckpointer(f"file://{tmp_path}/a%20b")
    checkpointer.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, 7)
    assert (tmp_path / "a b").is_dir()
    loaded = checkpointer.load()
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


def test_the_last_ones_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    checkpointer = FileCheckpointer(str(tmp_path), keep=2)
    assert checkpointer.latest() is None
    assert checkpointer.load() is None
    for step in (5, 10, 1_000_000_000_000):
        checkpointer.save({"step": step}, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000000010", "step-1000000000000"]
    assert checkpointer.latest() == 1_000_000_000_000
    assert checkpointer.load(10) == LoadedCheckpoint(10, {"step": 10})


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("name", ["data.bin", "tree.json", "manifest.json"])
@pytest.mark.parametrize("damage", [flip, cut, lengthen, Path.unlink])
def test_damage_is_found_and_the_one_before_is_taken(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    checkpointer = FileCheckpointer(str(tmp_path))
    for step in (1, 2):
        checkpointer.save({"x": torch.full((9,), step), "step": step}, step)
    if name == "manifest.json" and damage is lengthen:
        damage = flip
    damage(tmp_path / "step-000000000002" / name)
    loaded = checkpointer.load()
    assert loaded is not None
    assert loaded.step == 1
    assert len(loaded.skipped) == 1
    assert "step-000000000002 is damaged" in loaded.skipped[0]
    with pytest.raises(CheckpointDamaged, match="step-000000000002 is damaged"):
        checkpointer.load(2)
    checkpointer.save({"x": torch.zeros(9), "step": 2}, 2)
    assert checkpointer.load(2) is not None


def test_a_run_does_not_start_over_when_all_are_damaged(tmp_path: Path) -> None:
    checkpointer = FileCheckpointer(str(tmp_path))
    checkpointer.save({"x": torch.ones(3)}, 1)
    cut(tmp_path / "step-000000000001" / "data.bin")
    assert checkpointer.latest() is None
    with pytest.raises(CheckpointDamaged, match=r"data\.bin has 63 bytes instead of 64"):
        checkpointer.load()


def test_saving_a_good_step_again_changes_nothing(tmp_path: Path) -> None:
    checkpointer = FileCheckpointer(str(tmp_path))
    checkpointer.save({"x": 1}, 1)
    before = (tmp_path / "step-000000000001" / "manifest.json").stat().st_ino
    checkpointer.save({"x": 1}, 1)
    assert (tmp_path / "step-000000000001" / "manifest.json").stat().st_ino == before


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": [1, {2}]}, r"state\['a'\]\[1\] is a set"),
        ({"f": print}, r"state\['f'\] is a builtin_function_or_method"),
        ({b"k": 1}, "has the key b'k', a bytes"),
        ([torch.empty(2, device="meta")], r"state\[0\] is a sparse, quantised or meta tensor"),
    ],
)
def test_what_cannot_be_held_is_refused_with_its_place(tmp_path: Path, state: Any, message: str) -> None:
    with pytest.raises(CheckpointUnsupported, match=message):
        FileCheckpointer(str(tmp_path / "new")).save(state, 1)
    assert not (tmp_path / "new").exists()


def test_urls() -> None:
    assert directory_of("file:///a/b%20c") == "/a/b c"
    assert directory_of("runs/x") == "runs/x"
    for url in ("s3://bucket/x", "file://other-host/x"):
        with pytest.raises(CheckpointUnsupported, match=r"checkpoint\.url is"):
            directory_of(url)
    with pytest.raises(ValueError, match="keep is 0"):
        FileCheckpointer("x", keep=0)
    with pytest.raises(ValueError, match="step of a checkpoint is -1"):
        FileCheckpointer("x").save({}, -1)


CALLS = ("fsync", "rename", "mkdir", "open", "unlink", "rmdir")


def _die_at(number: int) -> None:
    """Kills this process at the given call of the file system, before the call happens."""
    left = [number]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    path_open = Path.open
    Path.open = counted(path_open)  # type: ignore[method-assign]


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_killed_at_any_call_of_the_file_system_a_good_one_is_left(tmp_path: Path) -> None:
    checkpointer = FileCheckpointer(str(tmp_path), keep=1)
    checkpointer.save({"x": torch.full((100,), 1.0)}, 1)
    newest, number, kills = 1, 0, 0
    while True:
        number += 1
        child = os.fork()
        if child == 0:  # the child must not come back into pytest, whatever happens
            try:
                _die_at(number)
                checkpointer.save({"x": torch.full((100,), newest + 1.0)}, newest + 1)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        loaded = checkpointer.load()
        assert loaded is not None
        assert loaded.step in {newest, newest + 1}
        assert not loaded.skipped
        assert loaded.state["x"].tolist() == [float(loaded.step)] * 100
        newest = loaded.step
        if not os.WIFSIGNALED(status):
            break
        kills += 1
    assert kills >= 10
    checkpointer.save({"x": torch.full((100,), newest + 1.0)}, newest + 1)
    assert [p.name for p in tmp_path.iterdir()] == [f"step-{newest + 1:012d}"]


ENDLESS = """
import itertools, sys, torch
from plait.train.checkpoint.files import FileCheckpointer
c = FileCheckpointer(sys.argv[1], keep=2)
for step in itertools.count(1):
    c.save({"x": torch.full((200_000,), float(step))}, step)
    print(step, flush=True)
"""


@pytest.mark.parametrize("told", [1, 4, 9])
def test_a_killed_process_leaves_what_it_told_of(tmp_path: Path, told: int) -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(told):
            last = int(child.stdout.readline())
        child.kill()
    loaded = FileCheckpointer(str(tmp_path)).load()
    assert loaded is not None
    assert loaded.step >= last
    assert loaded.state["x"].tolist() == [float(loaded.step)] * 200_000


def test_saving_in_the_background_holds_what_the_state_was(tmp_path: Path) -> None:
    background = BackgroundCheckpointer(FileCheckpointer(str(tmp_path)))
    x = torch.arange(6.0).reshape(2, 3).t()
    background.save({"x": x, "n": [1]}, 1)
    x.zero_()
    loaded = background.load()
    assert loaded is not None
    assert background.durable_step == 1
    assert loaded.state["x"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert background.latest() == 1
    background.close()


def test_a_failure_in_the_background_is_raised_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    background = BackgroundCheckpointer(FileCheckpointer(str(tmp_path / "file")))
    background.save({"x": 1}, 1)
    with pytest.raises(OSError, match="file"):
        background.wait()
    assert background.durable_step is None
    background.close()


def test_a_copy_is_contiguous_and_apart() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    copy = copied({"a": [x.t()], "b": "text"})
    assert copy["b"] == "text"
    assert copy["a"][0].is_contiguous()
    assert not copy["a"][0].requires_grad
    assert copy["a"][0].data_ptr() != x.data_ptr()
