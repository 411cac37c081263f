import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plait.cli.main import execute
from plait.train.checkpoint.arena import state_layout
from plait.train.checkpoint.commit import Retention
from plait.train.checkpoint.index import Index
from plait.train.checkpoint.nearest import load
from plait.train.checkpoint.repository import CheckpointFenced, Claim, Repository
from plait.train.checkpoint.stores import open_store
from plait.train.checkpoint.tree import raw_bytes


def state_at(step: int) -> dict[str, Any]:
    return {
        "model": {"w": torch.full((5, 3), float(step)), "b": torch.arange(4)},
        "optimizer": {"lr": 0.1},
        "step": step,
    }


def save(repository: Repository, claim: Claim, step: int) -> None:
    layout, tensors, values = state_layout(state_at(step))
    data = bytearray(layout.image.num_bytes)
    data[: len(layout.image.header)] = layout.image.header
    for tensor, offset in zip(tensors, layout.image.offsets, strict=True):
        data[offset : offset + len(raw_bytes(tensor))] = raw_bytes(tensor)
    index = Index(form=layout.index.form, values=tuple(values), tensors=layout.index.tensors)
    prefix = repository.prefix(claim, step)
    repository.commit(claim, step, prefix, [repository.write(prefix, 0, index, data, len(data))], written_s=0.0)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    repository = Repository(open_store(str(tmp_path / "run")), retention=Retention(last=9))
    claim = repository.claim(None)
    for step in (10, 20, 30):
        save(repository, claim, step)
    return tmp_path / "run"


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def flip(place: Path, step: int) -> None:
    file = next((place / "data").glob(f"{step:012d}-*/*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_checkpoints_are_listed_newest_first(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["checkpoints", str(place), "--json"]) == 0
    found = told(capsys)
    assert [one["step"] for one in found] == [30, 20, 10]
    assert {one["generation"] for one in found} == {1}
    assert execute(["checkpoints", f"file://{place}"]) == 0
    text = capsys.readouterr().out
    assert "30" in text
    assert "step" in text


def test_a_place_without_checkpoints_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["checkpoints", str(tmp_path)]) == 0
    assert "no checkpoints" in capsys.readouterr().out
    assert execute(["checkpoints", str(tmp_path), "verify"]) == 1


def test_verify_names_the_damaged_step_and_fails(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["checkpoints", str(place), "verify", "--json"]) == 0
    assert all(one["ok"] for one in told(capsys))
    flip(place, 20)
    assert execute(["checkpoints", str(place), "verify", "--json"]) == 1
    found = {one["step"]: one["fault"] for one in told(capsys)}
    assert found[10] is None
    assert found[30] is None
    assert "does not have the bytes that were written" in found[20]
    assert execute(["checkpoints", str(place), "verify", "--step", "30"]) == 0
    assert execute(["checkpoints", str(place), "verify", "--step", "31"]) == 1


def test_prune_keeps_the_last_and_clears_left_overs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dead = place / "data" / "000000000005-00000000-aaaaaaaaaaaa-bbbbbbbb"
    dead.mkdir()
    (dead / "r00000.safetensors").write_bytes(b"left by a dead writer")
    assert execute(["checkpoints", str(place), "prune", "--keep", "2", "--json"]) == 0
    found = told(capsys)
    assert found["removed_steps"] == [10]
    assert found["swept"] >= 1
    assert not dead.exists()
    assert [name.step for name in Repository(open_store(str(place))).names()] == [30, 20]


def test_restore_goes_back_and_fences_who_still_writes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = Repository(open_store(str(place)))
    claim = writer.claim(30)
    assert execute(["checkpoints", str(place), "restore", "--to", "10", "--json"]) == 0
    assert told(capsys)["step"] == 10
    with pytest.raises(CheckpointFenced):
        save(writer, claim, 40)
    found = load(Repository(open_store(str(place))))
    assert found is not None
    assert found.step == 10
    assert torch.equal(found.state["model"]["w"], state_at(10)["model"]["w"])


def test_restore_refuses_what_is_missing_or_damaged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["checkpoints", str(place), "restore", "--to", "11"]) != 0
    assert "10, 20, 30" in capsys.readouterr().err
    flip(place, 20)
    assert execute(["checkpoints", str(place), "restore", "--to", "20"]) != 0
    assert "damaged" in capsys.readouterr().err
    assert execute(["checkpoints", str(place), "restore"]) != 0


def test_exports_are_what_others_read(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    flip(place, 30)  # the newest good one is taken
    assert execute(["checkpoints", str(place), "export", "--out", str(out), "--json"]) == 0
    assert told(capsys)["step"] == 20
    model = load_file(out / "model.safetensors")
    assert set(model) == {"w", "b"}
    assert torch.equal(model["w"], state_at(20)["model"]["w"])
    assert execute(["checkpoints", str(place), "export", "--out", str(out), "--format", "torch", "--step", "10"]) == 0
    whole = torch.load(out / "step-000000000010.pt", weights_only=True)
    assert whole["step"] == 10
    assert torch.equal(whole["model"]["b"], torch.arange(4))


def test_a_job_file_names_its_place(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "job.yaml"
    text = "apiVersion: v1\nname: j\ntasks:\n  - name: t\n    command: [python, t.py]\n"
    job.write_text(f"{text}checkpoint: {{url: 'file://{place}', interval: 5m}}\n", encoding="utf-8")
    assert execute(["checkpoints", str(job), "--json"]) == 0
    assert [one["step"] for one in told(capsys)] == [30, 20, 10]
    job.write_text(text, encoding="utf-8")
    assert execute(["checkpoints", str(job)]) != 0
    assert "keeps no checkpoints" in capsys.readouterr().err
