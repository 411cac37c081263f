import inspect
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.planner import LoadPlan

from plait.train.checkpoint.checkpointer import CheckpointDamaged
from plait.train.checkpoint.dcp import PlaitReader, PlaitWriter
from plait.train.checkpoint.foreign import read_foreign

pytestmark = pytest.mark.filterwarnings("ignore")  # DCP's own remarks on single processes


def state() -> dict[str, Any]:
    return {
        "model": {"w": torch.arange(120_000.0).reshape(300, 400), "b": torch.ones(3, dtype=torch.bfloat16)},
        "n": 5,
        "list": [1, torch.full((2,), 7), "word"],
        "empty": torch.empty(0, 4),
    }


def blank() -> dict[str, Any]:
    return {
        "model": {"w": torch.zeros(300, 400), "b": torch.zeros(3, dtype=torch.bfloat16)},
        "n": 0,
        "list": [0, torch.zeros(2, dtype=torch.int64), ""],
        "empty": torch.empty(0, 4),
    }


def test_what_dcp_saves_here_it_loads_from_here(tmp_path: Path) -> None:
    for step in (1, 2):
        saved = state()
        saved["n"] = step
        dcp.save(saved, storage_writer=PlaitWriter(str(tmp_path), step=step), no_dist=True)  # type: ignore[attr-defined]
    loaded, reader = blank(), PlaitReader(str(tmp_path))
    dcp.load(loaded, storage_reader=reader, no_dist=True)  # type: ignore[attr-defined]
    assert loaded["n"] == 2
    assert loaded["list"][2] == "word"
    assert torch.equal(loaded["model"]["w"], state()["model"]["w"])
    assert torch.equal(loaded["list"][1], state()["list"][1])
    assert reader.bytes_read < 1.05 * 120_000 * 4 + 65536


def test_a_flipped_bit_is_found_by_dcp_too(tmp_path: Path) -> None:
    dcp.save(state(), storage_writer=PlaitWriter(str(tmp_path), step=1), no_dist=True)  # type: ignore[attr-defined]
    path = next((tmp_path / "data").glob("*/r00000.safetensors"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises((CheckpointDamaged, dcp.CheckpointException), match="does not have the bytes"):  # type: ignore[attr-defined]
        dcp.load(blank(), storage_reader=PlaitReader(str(tmp_path)), no_dist=True)  # type: ignore[attr-defined]


def test_a_directory_of_dcp_itself_is_read(tmp_path: Path) -> None:
    dcp.save(state(), checkpoint_id=tmp_path, no_dist=True)  # type: ignore[attr-defined]
    found = read_foreign(tmp_path)
    assert torch.equal(found["model"]["w"], state()["model"]["w"])
    assert found["n"] == 5


class Harmful:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_metadata_that_would_be_executed_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Harmful()))
    with pytest.raises((CheckpointDamaged, dcp.CheckpointException), match=r"builtins\.print"):  # type: ignore[attr-defined]
        read_foreign(tmp_path)
    assert "executed" not in capsys.readouterr().out


def test_ranks_that_find_different_checkpoints_load_nothing(tmp_path: Path) -> None:
    """As where a file of one rank is missing on one of two nodes: a mix of two steps would load without a word."""
    places = (tmp_path / "one", tmp_path / "other")
    for step in (10, 20):
        dcp.save(state(), storage_writer=PlaitWriter(str(places[0]), step=step), no_dist=True)  # type: ignore[attr-defined]
    shutil.copytree(places[0], places[1])
    next(places[1].glob("data/000000000020-*/r00000.safetensors")).unlink()
    readers = [PlaitReader(str(place)) for place in places]
    plans = []
    for reader in readers:
        reader.set_up_storage_reader(reader.read_metadata(), is_coordinator=reader is readers[0])
        plans.append(reader.prepare_local_plan(LoadPlan([])))
    with pytest.raises(CheckpointDamaged, match=r"rank 0 step 20, rank 1 step 10.*step=10"):
        readers[0].prepare_global_plan(plans)
    assert readers[0].prepare_global_plan(plans[:1]) == plans[:1]


def test_dcp_does_not_take_a_place_without_checkpoints_for_one_of_each_rank(tmp_path: Path) -> None:
    assert "kwargs" not in inspect.signature(PlaitReader(str(tmp_path)).read_metadata).parameters
    with pytest.raises((CheckpointDamaged, dcp.CheckpointException), match="holds no checkpoint of DCP"):  # type: ignore[attr-defined]
        dcp.load(blank(), storage_reader=PlaitReader(str(tmp_path)), no_dist=True)  # type: ignore[attr-defined]
