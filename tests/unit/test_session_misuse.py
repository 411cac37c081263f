"""Loops that cannot work are refused with a word on what to do instead; run alone, in this process."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import plait
from plait.errors import PlaitError
from plait.spec.job import DevicePrecision, PrecisionPlan
from plait.train import making
from plait.train.checkpoint.catalogue import Catalogue
from plait.train.checkpoint.stores import FileStore
from plait.train.session import Session

DATA = TensorDataset(torch.randn(20, 3), torch.randn(20, 1))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a launcher is about."""
    names = ("PLAIT_SEEDS", "PLAIT_JOB", "PLAIT_MEMBER", "PLAIT_SPLIT", "PLAIT_FAULTS", "PLAIT_RUN_DIR", "PLAIT_AGENT")
    for name in (*names, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PLAIT_ACCELERATOR_TYPE"):
        monkeypatch.delenv(name, raising=False)


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    result: Tensor = (model(batch[0]) - batch[1]).square().mean()
    return result


Prepared = tuple[Session, nn.Module, torch.optim.Optimizer, Any]


@pytest.fixture
def prepared() -> Iterator[Prepared]:
    with plait.session(global_batch_size=8, micro_batches=4, max_fused=2) as run:
        yield (run, *run.prepare(*parts(), DATA, epochs=1))


@pytest.mark.parametrize(("setting", "told"), [({"bitwise": True}, "bitwise"), ({"max_fused": 2}, "max_fused is 2")])
def test_statistics_of_a_whole_step_are_refused_where_they_cannot_be(setting: dict[str, Any], told: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        plait.session(global_batch_size=8, micro_batches=4, **setting) as run,
        pytest.raises(PlaitError, match=told),
    ):
        run.prepare(model, optimizer, DATA, epochs=1, batch_norm="sync")


def no_backward(_run: Session, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    for batch in loader:
        loss_of(model, batch)
        optimizer.step()


def no_step(_run: Session, model: nn.Module, _optimizer: torch.optim.Optimizer, loader: Any) -> None:
    for batch in loader:
        loss_of(model, batch).backward()


def no_batch(_run: Session, _model: nn.Module, optimizer: torch.optim.Optimizer, _loader: Any) -> None:
    optimizer.step()


def two_steps(_run: Session, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    for batch in loader:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.step()


def closure(_run: Session, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    for batch in loader:
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step(lambda loss=loss: float(loss.detach()))  # type: ignore[misc]


def clips(_run: Session, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    for batch in loader:
        (loss_of(model, batch) * 100).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()


def prepares_twice(run: Session, _model: nn.Module, _optimizer: torch.optim.Optimizer, _loader: Any) -> None:
    run.prepare(*parts(), DATA)


def explicit_without_commit(run: Session, model: nn.Module, _optimizer: torch.optim.Optimizer, _loader: Any) -> None:
    for step in run.steps():
        for batch in step:
            step.backward(loss_of(model, batch))


def explicit_without_backward(run: Session, model: nn.Module, _optimizer: torch.optim.Optimizer, _loader: Any) -> None:
    for step in run.steps():
        step.commit()


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        (no_backward, "before backward()"),
        (no_step, "the batch of step 0 was not used"),
        (no_batch, "without a batch of the loader"),
        (two_steps, "without a batch of the loader"),
        (closure, "closure (such as LBFGS)"),
        (clips, "run.prepare(..., clip_grad_norm=...)"),
        (prepares_twice, "has a model already"),
        (explicit_without_commit, "step 0 was not committed: call step.commit()"),
        (explicit_without_backward, "without a backward pass"),
    ],
)
def test_a_loop_that_cannot_work_is_refused(prepared: Prepared, loop: Callable[..., None], message: str) -> None:
    with pytest.raises(PlaitError) as caught:
        loop(*prepared)
    assert message in str(caught.value)


class Stream(IterableDataset[Tensor]):
    """Has no numbers."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter([torch.zeros(3)])


class Nameless(Dataset[Tensor]):
    """Has samples, but does not say how many."""

    def __getitem__(self, index: int) -> Tensor:
        return torch.zeros(3)


@pytest.mark.parametrize("dataset", [Stream(), Nameless()])
def test_a_data_set_without_numbers_is_refused_by_its_name(dataset: Dataset[Any]) -> None:
    with (
        plait.session(global_batch_size=8) as run,
        pytest.raises(PlaitError, match=rf"{type(dataset).__name__}.*map-style"),
    ):
        run.prepare(*parts(), dataset)


def test_a_model_without_anything_to_train_is_refused() -> None:
    model, optimizer = parts()
    model.requires_grad_(False)
    with (
        plait.session(global_batch_size=8) as run,
        pytest.raises(PlaitError, match="Linear has no parameter that needs a gradient"),
    ):
        run.prepare(model, optimizer, DATA)


def test_what_needs_a_model_says_so_before_there_is_one() -> None:
    with plait.session(global_batch_size=8) as run:
        assert (run.member, run.world, run.rank, run.is_leader) == ("w0", ("w0",), 0, True)
        for ask in (lambda: run.step, lambda: run.epoch, lambda: run.record(loss=1.0), lambda: next(run.steps())):
            with pytest.raises(PlaitError, match=r"call run\.prepare"):
                ask()


def test_a_precision_that_the_device_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_ACCELERATOR_TYPE", "V100")
    plan = PrecisionPlan(device_specific=(DevicePrecision(accelerator_type="V100", precision="bf16"),))
    with pytest.raises(PlaitError, match="V100 does not compute in bf16"), plait.session(precision=plan):
        pass


def test_a_member_alone_cannot_lose_members_but_may_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_FAULTS", "error w0@1")

    def train() -> None:
        with plait.session(global_batch_size=8, micro_batches=4) as run:
            model, optimizer, loader = run.prepare(*parts(), DATA)
            for batch in loader:
                loss_of(model, batch).backward()
                optimizer.step()

    with pytest.raises(RuntimeError, match="injected at step 1"):
        train()


def test_both_forms_of_the_loop_come_to_the_same_weights() -> None:
    found = []
    for explicit in (False, True):
        torch.manual_seed(4)
        with plait.session(global_batch_size=8, micro_batches=4, max_fused=3) as run:
            model, optimizer, loader = run.prepare(*parts(), DATA, epochs=2)
            if explicit:
                for step in run.steps():
                    for batch in step:
                        step.backward(loss_of(model, batch))
                    assert step.commit()
            else:
                for batch in loader:
                    loss_of(model, batch).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            assert run.step == run.total_steps == 6
        found.append([p.detach().clone() for p in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_shorter_run_by_steps_and_what_the_observers_are_told(tmp_path: Path) -> None:
    facts: list[Any] = []
    with plait.session(global_batch_size=8, micro_batches=4) as run:
        run.on_commit(facts.append)
        model, optimizer, loader = run.prepare(*parts(), DATA, steps=4)
        assert len(loader) == 4
        for batch in loader:
            loss = loss_of(model, batch)
            run.record(loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert [f.step for f in facts] == [0, 1, 2, 3]
    assert [f.samples for f in facts] == [8, 8, 4, 8]
    assert all(f.total_steps == 4 and f.loss is not None and f.loss > 0.0 for f in facts)
    assert [dict(f.counts) for f in facts] == [{"w0": n} for n in (8, 8, 4, 8)]


def test_members_of_another_version_differ_first_in_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they send one another may have another form, and would only break exchange after exchange."""
    mine = making.contract(MagicMock(), MagicMock(), 10, MagicMock())
    monkeypatch.setattr(making, "__version__", "99.0")
    theirs = making.contract(MagicMock(), MagicMock(), 10, MagicMock())
    name, value = next(field for field, other in zip(theirs, mine, strict=True) if field != other)
    assert (name, value) == ("Plait version", "99.0")


def test_of_a_run_the_last_the_even_and_the_best_checkpoints_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scores = {2: 0.9, 3: 0.1, 4: 0.5, 9: 0.4}
    with plait.session(global_batch_size=4, micro_batches=4) as run:
        run.save_every(0.0, str(tmp_path), keep=1, keep_every=4, keep_best=1)
        assert run.settings.checkpoint is not None
        run.settings = replace(run.settings, checkpoint=replace(run.settings.checkpoint, asynchronous=False))
        run.on_commit(lambda facts: run.score(scores[facts.step + 1]) if facts.step + 1 in scores else None)
        model, optimizer, loader = run.prepare(*parts(), DATA, steps=10, epochs=2)
        for batch in loader:
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = {one.name.step: one.manifest.metric for one in Catalogue(FileStore(tmp_path)).found() if one.manifest}
    assert found == {10: 0.4, 8: 0.5, 4: 0.5, 3: 0.1}
    assert "could not be saved" not in caplog.text  # the last step is due, and saved once more because it is the last


def test_a_session_that_is_not_open_says_how_it_is_opened() -> None:
    run: Any = plait.session()
    with pytest.raises(AttributeError, match=r"session is not open yet: write `with plait.session\(\.\.\.\) as run:`"):
        run.prepare(*parts(), DATA, epochs=1)
    with run as opened:
        assert opened.rank == 0
