import copy
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from plait.train.norm import (
    CountWeightedSyncBatchNorm,
    Exchange,
    GhostBatchNorm,
    GhostStatistics,
    convert,
)

K = 5
COUNTS = (4, 4, 4, 3, 0)


def small_model(momentum: float | None = 0.1) -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6, momentum=momentum), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(6 * 9, 4), nn.BatchNorm1d(4, momentum=momentum)).double()


def samples(step: int, k: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + k)
    return torch.randn(COUNTS[k], 2, 5, 5, generator=generator, dtype=torch.float64) * 2 + 1


def one_process(model: nn.Module, steps: int) -> None:
    for step in range(steps):
        for k in range(K):
            if COUNTS[k]:
                (model(samples(step, k)) ** 3).sum().backward()


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return dict(model.named_buffers())


def ghost_members(
    parts: Sequence[Sequence[int]], steps: int, momentum: float | None, fused: int = 3
) -> list[nn.Module]:
    members = [convert(small_model(momentum), "ghost") for _ in parts]
    statistics = [GhostStatistics(member) for member in members]
    for step in range(steps):
        for member, seen, ks in zip(members, statistics, parts, strict=True):
            for first in range(0, len(ks), fused):
                together = ks[first : first + fused]
                batch = torch.cat([samples(step, k) for k in together])
                if not batch.numel():
                    continue
                seen.enter(together, [COUNTS[k] for k in together])
                (member(batch) ** 3).sum().backward()
        table = torch.stack([seen.table(K) for seen in statistics]).sum(0)
        for seen in statistics:
            seen.merge(table)
    return members


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3, 4]], [[0, 1], [2, 3, 4]], [[3], [1, 2, 0], [], [4]]])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_ghost_equals_one_process_that_runs_the_micro_batches_in_order(
    parts: list[list[int]], momentum: float | None
) -> None:
    reference = small_model(momentum)
    one_process(reference, steps=3)
    members = ghost_members(parts, 3, momentum)
    for member in members:
        for name, value in buffers(reference).items():
            torch.testing.assert_close(buffers(member)[name], value, rtol=1e-12, atol=1e-14)
        for name, value in buffers(members[0]).items():
            assert torch.equal(buffers(member)[name], value), name
    for name, parameter in reference.named_parameters():
        gradient = sum(p.grad for m in members for n, p in m.named_parameters() if n == name and p.grad is not None)
        assert isinstance(gradient, Tensor)
        assert parameter.grad is not None
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-11, atol=1e-11)


def test_ghost_running_statistics_do_not_depend_on_the_split_bit_for_bit() -> None:
    # Each micro-batch alone: a fused product of matrices before the layer may round otherwise.
    one = ghost_members([[0, 1, 2, 3, 4]], 2, 0.1, fused=1)[0]
    other = ghost_members([[4, 2], [0], [3, 1]], 2, 0.1, fused=1)[1]
    for name, value in buffers(one).items():
        assert torch.equal(buffers(other)[name], value), name


def test_ghost_without_a_step_is_an_ordinary_batch_norm() -> None:
    plain, ghost = small_model(), convert(small_model(), "ghost")
    x = torch.randn(6, 2, 5, 5, dtype=torch.float64)
    assert torch.equal(plain(x), ghost(x))
    assert torch.equal(plain.eval()(x), ghost.eval()(x))
    for name, value in buffers(plain).items():
        assert torch.equal(buffers(ghost)[name], value)


def test_ghost_refuses_a_batch_of_another_size() -> None:
    model = convert(small_model(), "ghost")
    GhostStatistics(model).enter([0, 1], [4, 4])
    with pytest.raises(ValueError, match="a batch of 6 samples reached BatchNorm, but its micro-batches hold 8"):
        model(torch.randn(6, 2, 5, 5, dtype=torch.float64))


def test_ghost_takes_a_single_sample_by_the_running_statistics() -> None:
    layer = convert(nn.BatchNorm1d(3), "ghost")
    statistics = GhostStatistics(layer)
    statistics.enter([0, 1], [4, 1])
    x = torch.randn(5, 3)
    result = layer(x)
    torch.testing.assert_close(result[4], x[4] / (1 + 1e-5) ** 0.5)
    assert statistics.table(2)[:, 0].tolist() == [1.0, 0.0]


def test_ghost_forgets_a_step_that_was_given_up_and_takes_a_redo_once() -> None:
    layer = convert(nn.BatchNorm1d(3), "ghost")
    statistics = GhostStatistics(layer)
    statistics.enter([0], [4])
    layer(torch.randn(4, 3))
    statistics.discard([0])
    assert not statistics.table(2).any()
    x = torch.randn(4, 3)
    layer(x), layer(x)
    statistics.merge(statistics.table(2))
    assert isinstance(layer, GhostBatchNorm)
    assert layer.num_batches_tracked is not None
    assert int(layer.num_batches_tracked) == 1
    assert not statistics.table(2).any()


class Meeting:
    """A sum over threads that each call it equally often."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=30)
        self.lock = threading.Lock()
        self.parts: list[tuple[int, Tensor]] = []
        self.result = torch.empty(0)

    def member(self, rank: int) -> Callable[[Tensor], Tensor]:
        def all_reduce(tensor: Tensor) -> Tensor:
            with self.lock:
                self.parts.append((rank, tensor.detach().clone()))
            if self.barrier.wait() == 0:
                self.result = torch.stack([t for _, t in sorted(self.parts, key=lambda part: part[0])]).sum(0)
                self.parts = []
            self.barrier.wait()
            result = self.result.clone()
            self.barrier.wait()
            return result

        return all_reduce


@pytest.mark.parametrize("counts", [(7,), (4, 3), (5, 2, 0), (1, 6), (0, 7)])
@pytest.mark.parametrize("affine", [True, False])
def test_sync_equals_one_batch_norm_over_all_samples(counts: tuple[int, ...], affine: bool) -> None:
    x = torch.randn(7, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3 + 5
    plain = nn.BatchNorm1d(3, affine=affine).double()
    if affine:
        nn.init.normal_(plain.weight)
        nn.init.normal_(plain.bias)
    start = copy.deepcopy(plain)
    whole = x.clone().requires_grad_()
    expected = plain(whole)
    (expected**3).sum().backward()

    meeting = Meeting(len(counts))
    modules = [convert(copy.deepcopy(start), "sync", Exchange(meeting.member(r))) for r in range(len(counts))]
    inputs = [part.clone().requires_grad_() for part in x.split(list(counts))]
    outputs: list[Tensor] = [torch.empty(0)] * len(counts)

    def run(rank: int) -> None:
        outputs[rank] = modules[rank](inputs[rank])
        (outputs[rank] ** 3).sum().backward()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    torch.testing.assert_close(torch.cat(outputs), expected)
    gradients = [part.grad for part in inputs if part.grad is not None]
    torch.testing.assert_close(torch.cat(gradients), whole.grad)
    for module in modules:
        for name, value in plain.named_buffers():
            torch.testing.assert_close(dict(module.named_buffers())[name], value)
    for name, parameter in plain.named_parameters():
        total = sum(g for m in modules if (g := dict(m.named_parameters())[name].grad) is not None)
        torch.testing.assert_close(total, parameter.grad)


def test_sync_is_exact_far_from_zero() -> None:
    layer = convert(nn.BatchNorm1d(2, affine=False), "sync")
    x = torch.randn(64, 2) + 10_000.0
    torch.testing.assert_close(layer(x), nn.BatchNorm1d(2, affine=False)(x), rtol=1e-2, atol=1e-2)


def test_sync_keeps_low_precision_inputs() -> None:
    layer = convert(nn.BatchNorm1d(2), "sync")
    assert layer(torch.randn(8, 2, dtype=torch.bfloat16)).dtype is torch.bfloat16


@pytest.mark.parametrize("kind", ["ghost", "sync"])
def test_conversion_keeps_parameters_names_and_modes(kind: str) -> None:
    model = nn.Sequential(nn.Sequential(nn.BatchNorm2d(3)), nn.BatchNorm1d(3, affine=False, track_running_stats=False))
    model[0].eval()
    before = dict(model.state_dict(keep_vars=True))
    converted = convert(model, "ghost" if kind == "ghost" else "sync")
    after = dict(converted.state_dict(keep_vars=True))
    assert before.keys() == after.keys()
    assert all(after[name] is value for name, value in before.items())
    layer = converted[0][0]  # type: ignore[index]
    assert isinstance(layer, GhostBatchNorm if kind == "ghost" else CountWeightedSyncBatchNorm)
    assert not layer.training
    assert isinstance(convert(nn.BatchNorm3d(3), "sync"), CountWeightedSyncBatchNorm)
    assert convert(converted, "ghost") is converted
