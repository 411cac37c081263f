"""A virtual device runs graphs on what is bound to it, in its precision, with its operators and its random numbers."""

import pytest
import torch
from torch import Tensor, fx, nn

import plait
from plait.errors import PlaitError
from plait.train.devices.virtual import NotBound
from plait.train.operators.registry import UnknownOperator
from plait.train.precision import PrecisionUnsupported


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.LayerNorm(16)
        self.batch = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.last(self.drop(self.batch(self.norm(self.first(x)))))
        return hidden.softmax(-1)


def net() -> tuple[fx.GraphModule, Tensor]:
    torch.manual_seed(0)
    return fx.symbolic_trace(Net()), torch.randn(4, 6)


def test_executes_what_the_model_computes_and_gradients_reach_the_parameters() -> None:
    graph, x = net()
    graph.eval()
    device = plait.VirtualDevice(custom_ops=["LayerNorm", "softmax"])
    binding = device.bind_physical("cpu")
    assert binding.device == torch.device("cpu")
    assert "layer_norm runs as moments in one pass, gradient in closed form" in binding.reasons
    torch.testing.assert_close(device.execute(graph, x), graph(x))
    assert sorted(swap.operator for swap in device.swaps(graph)) == ["layer_norm", "softmax"]
    device.execute(graph, x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in graph.parameters())


def test_trains_as_the_plain_loop_does() -> None:
    def losses(step_of: str) -> list[float]:
        graph, x = net()
        graph.eval()  # no draws: the two loops are to agree
        optimizer = torch.optim.AdamW(graph.parameters(), lr=0.05)
        device = plait.VirtualDevice(custom_ops=["layer_norm"])
        device.bind_physical("cpu")
        device.adopt(graph, optimizer)
        found = []
        for _ in range(5):
            result = device.execute(graph, x) if step_of == "virtual" else graph(x)
            loss = (result - torch.eye(3)[torch.tensor([0, 1, 2, 0])]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return found

    assert losses("virtual") == pytest.approx(losses("plain"), rel=1e-5)


@pytest.mark.parametrize(("precision", "kind"), [("bf16", torch.bfloat16), ("fp64", torch.float64)])
def test_computes_in_its_precision_over_float32_masters(precision: str, kind: torch.dtype) -> None:
    graph, x = net()
    graph.eval()
    seen: list[torch.dtype] = []
    graph.get_submodule("last").register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    device = plait.VirtualDevice(precision=precision)  # type: ignore[arg-type]
    device.bind_physical("cpu")
    result = device.execute(graph, x)
    assert seen == [kind]
    assert result.dtype == (torch.float32 if precision == "bf16" else torch.float64)
    result.sum().backward()
    assert {p.dtype for p in graph.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in graph.parameters() if p.grad is not None} == {torch.float32}
    torch.testing.assert_close(result.float(), graph(x), rtol=0.05, atol=0.02)


def test_where_autocast_is_missing_parameters_are_cast_and_buffers_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x = net()
    expected = graph.eval()(x)
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda _type: False)
    device = plait.VirtualDevice(precision="bf16")
    device.bind_physical("cpu")
    result = device.execute(graph, x)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, rtol=0.05, atol=0.02)
    assert {b.dtype for b in graph.buffers()} == {torch.float32, torch.int64}


def test_statistics_of_training_stay_with_the_graph() -> None:
    graph, x = net()
    device = plait.VirtualDevice()
    device.bind_physical("cpu")
    before = graph.get_buffer("batch.running_mean").clone()
    device.execute(graph.train(), x)
    assert not torch.equal(before, graph.get_buffer("batch.running_mean"))
    torch.testing.assert_close(device.execute(graph.eval(), x), graph(x))


def test_random_numbers_are_its_own_and_go_on_after_another_binding() -> None:
    def draws(rebind: bool) -> list[Tensor]:
        graph, x = net()
        device = plait.VirtualDevice(seed=7)
        device.bind_physical("cpu")
        found = [device.execute(graph, x)]
        if rebind:
            binding = device.bind_physical("cpu")
            assert binding.random_continues
            assert (binding.moved_tensors, binding.moved_bytes) == (0, 0)
        return [*found, device.execute(graph, x)]

    torch.manual_seed(3)
    outside = torch.rand(2)
    torch.manual_seed(3)
    once = draws(rebind=False)
    torch.manual_seed(3)
    again = draws(rebind=True)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert not torch.equal(once[0], once[1])
    torch.manual_seed(3)
    graph, x = net()
    torch.manual_seed(3)
    device = plait.VirtualDevice()
    device.bind_physical("cpu")
    device.execute(graph, x)
    assert torch.equal(torch.rand(2), outside), "the process's stream was touched"


def test_parameters_buffers_and_optimizer_states_move_to_what_is_bound() -> None:
    graph, x = net()
    optimizer = torch.optim.Adam(graph.parameters())
    device = plait.VirtualDevice()
    device.bind_physical("cpu")
    device.adopt(graph, optimizer)
    device.execute(graph, x).sum().backward()
    optimizer.step()
    held = [*graph.parameters(), *graph.buffers()]
    states = [v for state in optimizer.state.values() for v in state.values() if v.dim() > 0]
    size = sum(t.numel() * t.element_size() for t in [*held, *states])
    binding = device.bind_physical("meta")  # the one other device that every machine has: shapes without data
    assert (binding.moved_tensors, binding.moved_bytes) == (len(held) + len(states), size)
    assert not binding.random_continues
    assert {t.device.type for t in [*graph.parameters(), *graph.buffers()]} == {"meta"}
    after = [v for state in optimizer.state.values() for v in state.values() if v.dim() > 0]
    assert {t.device.type for t in after} == {"meta"}
    assert len(after) == len(states)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in graph.parameters()]
    result = device.execute(graph, x)
    assert (result.device.type, result.shape) == ("meta", (4, 3))


def test_a_device_that_does_not_take_the_state_leaves_it_where_it_was() -> None:
    graph, x = net()
    device = plait.VirtualDevice()
    device.bind_physical("cpu")
    device.execute(graph, x)
    before = device.device
    original = graph.to

    def failing(target: torch.device) -> fx.GraphModule:
        if target.type == "meta":
            raise RuntimeError("out of memory")
        return original(target)

    graph.to = failing  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError, match="out of memory"):
        device.bind_physical("meta")
    assert device.device == before
    assert {p.device.type for p in graph.parameters()} == {"cpu"}
    device.execute(graph, x)


def test_a_changed_graph_is_rewritten_again() -> None:
    graph, x = net()
    graph.eval()
    device = plait.VirtualDevice(custom_ops=["softmax"])
    device.bind_physical("cpu")
    device.execute(graph, x)
    output = next(node for node in graph.graph.nodes if node.op == "output")
    with graph.graph.inserting_before(output):
        doubled = graph.graph.call_function(torch.mul, (output.args[0], 2.0))
    output.args = (doubled,)
    graph.recompile()
    torch.testing.assert_close(device.execute(graph, x).sum(), torch.tensor(8.0))


def test_misuse_is_told_in_a_sentence() -> None:
    with pytest.raises(UnknownOperator, match="'LayerNrm'; did you mean 'layer_norm'"):
        plait.VirtualDevice(custom_ops=["LayerNrm"])
    device = plait.VirtualDevice(precision="bf16")
    with pytest.raises(NotBound, match="bind_physical"):
        device.execute(net()[0], torch.zeros(1, 6))
    with pytest.raises(PrecisionUnsupported, match="V100 does not compute in bf16"):
        device.bind_physical("cpu", accelerator_type="V100")
    device.bind_physical("cpu", accelerator_type="A100")
    with pytest.raises(PlaitError, match="this is a Net: trace it first"):
        device.execute(Net(), torch.zeros(1, 6))  # type: ignore[arg-type]
