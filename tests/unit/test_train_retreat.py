from typing import Any

import pytest
import torch
from torch import nn

from plait.train.retreat import DoesNotFit, asked_bytes, free_bytes, ran_out, update_in_memory

CPU_TEXT = (
    "[enforce fail at alloc_cpu.cpp:126] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4194304 bytes. Error code 12 (Cannot allocate memory)"
)
CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.15 GiB of which 3 MiB is free"
)


@pytest.mark.parametrize(
    ("error", "is_memory", "asked"),
    [
        (RuntimeError(CPU_TEXT), True, 4194304),
        (torch.OutOfMemoryError(CUDA_TEXT), True, 1610612736),
        (MemoryError(), True, None),
        (RuntimeError("NPU out of memory. Tried to allocate 20.00 MiB"), True, 20971520),
        (RuntimeError("Connection closed by peer"), False, None),
        (ValueError("out of memory"), False, None),
    ],
)
def test_what_says_that_memory_ran_out(error: Exception, is_memory: bool, asked: int | None) -> None:
    assert ran_out(error) is is_memory
    assert asked_bytes(error) == asked


def test_free_memory_of_the_host_is_known() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is not None
    assert free > 0
    assert free_bytes(torch.device("meta")) is None


class Tight(torch.optim.Adam):
    """Runs out of memory at some calls, before or after the first parameter was written to."""

    def __init__(self, parameters: Any, fails: set[int], *, halfway: bool = False) -> None:
        super().__init__(parameters, lr=0.1, foreach=True)
        self.fails, self.halfway, self.calls = fails, halfway, 0

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if self.calls in self.fails:
            first = self.param_groups[0]["params"][0]
            if self.halfway:
                with torch.no_grad():
                    first.add_(1.0)
            self.state.setdefault(first, {"step": torch.tensor(0.0)})  # begun, and its moments not
            raise RuntimeError(CPU_TEXT)
        return super().step(closure)


def stepped(optimizer_of: Any, steps: int) -> list[float]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = optimizer_of(model.parameters())
    for number in range(steps):
        model.zero_grad()
        model(torch.full((4, 3), float(number + 1))).square().mean().backward()
        update_in_memory(optimizer, torch.device("cpu"))
    return [float(v) for p in model.parameters() for v in p.detach().flatten()]


@pytest.mark.filterwarnings("ignore:.*lr_scheduler")
@pytest.mark.parametrize("fails", [{1}, {2}, {1, 3}])
def test_an_update_that_changed_nothing_yet_is_done_again_in_less_memory(fails: set[int]) -> None:
    usual = stepped(lambda parameters: Tight(parameters, set()), 3)
    assert stepped(lambda parameters: Tight(parameters, fails), 3) == pytest.approx(usual, abs=1e-6)


def test_an_update_that_broke_halfway_is_not_passed_over() -> None:
    with pytest.raises(DoesNotFit, match="middle of the optimizer's update"):
        stepped(lambda parameters: Tight(parameters, {2}, halfway=True), 2)


def test_an_update_that_fits_in_no_way_says_what_was_asked_for() -> None:
    with pytest.raises(DoesNotFit, match=r"4\.19 MB more were asked for"):
        stepped(lambda parameters: Tight(parameters, {1, 2}), 1)


def test_other_errors_of_an_optimizer_are_its_own() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            del closure
            raise RuntimeError("sparse gradients are not supported")

    with pytest.raises(RuntimeError, match="sparse"):
        stepped(lambda parameters: Broken(parameters, lr=0.1), 1)
