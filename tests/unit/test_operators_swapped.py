"""Registered operators equal their references; graphs and forward passes run them, and nothing else changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn import functional

from plait.spec.custom_ops import CUSTOM_OPS
from plait.train.operators import attention, layer_norm, softmax
from plait.train.operators.registry import (
    REFERENCES,
    UnknownOperator,
    implementation,
    implementations,
    register,
    vendors_by_operator,
)
from plait.train.operators.swap import rewritten, swap_in_forward

CPU = torch.device("cpu")
ALL = ("LayerNorm", "Softmax", "FlashAttention")


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (made * scale).to(dtype).requires_grad_()


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    result = function(*inputs)
    upstream = torch.randn(result.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return (result, *torch.autograd.grad((result.double() * upstream).sum(), inputs))


def assert_equal_with_gradients(one: Callable[..., Tensor], other: Callable[..., Tensor], *inputs: Tensor) -> None:
    tight = inputs[0].dtype == torch.float64
    for mine, its in zip(gradients(one, *inputs), gradients(other, *inputs), strict=True):
        assert mine.dtype == its.dtype
        torch.testing.assert_close(mine, its, rtol=1e-9 if tight else 2e-2, atol=1e-9 if tight else 2e-2)


def test_every_operator_has_a_reference_and_an_implementation_for_cpus() -> None:
    assert set(REFERENCES) == set(CUSTOM_OPS)
    assert {name for name in CUSTOM_OPS if implementation(name, "CPU") is not None} == set(CUSTOM_OPS)
    assert all("cpu" in vendors for vendors in vendors_by_operator().values())
    assert [each.operator for each in implementations()] == sorted(each.operator for each in implementations())


@settings(max_examples=40)
@given(
    rows=st.integers(1, 5),
    size=st.integers(1, 40),
    extra=st.integers(0, 2),
    affine=st.sampled_from(["both", "weight", "bias", "none"]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_layer_norm_equals_its_reference_and_pytorch(
    rows: int, size: int, extra: int, affine: str, dtype: torch.dtype
) -> None:
    shape = (size, *([2] * extra))
    x = tensor(rows, *shape, dtype=dtype, scale=3.0)
    weight = tensor(*shape, seed=1, dtype=dtype) if affine in {"both", "weight"} else None
    bias = tensor(*shape, seed=2, dtype=dtype) if affine in {"both", "bias"} else None
    given_ = [t for t in (x, weight, bias) if t is not None]

    def by(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*tensors: Tensor) -> Tensor:
            rest = iter(tensors[1:])
            w = None if weight is None else next(rest)
            b = None if bias is None else next(rest)
            return function(tensors[0], shape, w, b, 1e-5)

        return run

    assert_equal_with_gradients(by(layer_norm.fused), by(layer_norm.reference), *given_)
    assert_equal_with_gradients(by(layer_norm.fused), by(functional.layer_norm), *given_)


@settings(max_examples=40)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    dim=st.integers(-3, 2),
    scale=st.sampled_from([1.0, 50.0]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_softmax_equals_its_reference_and_pytorch(shape: list[int], dim: int, scale: float, dtype: torch.dtype) -> None:
    dim = dim % len(shape)
    x = tensor(*shape, dtype=dtype, scale=scale)
    assert_equal_with_gradients(lambda t: softmax.online(t, dim), lambda t: softmax.reference(t, dim), x)
    assert_equal_with_gradients(lambda t: softmax.online(t, dim), lambda t: torch.softmax(t, dim), x)


def test_online_softmax_takes_rows_of_many_blocks_and_of_minus_infinity() -> None:
    x = torch.randn(3, 10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 20
    x[1, :9000] = -torch.inf
    torch.testing.assert_close(softmax.online(x, 1), torch.softmax(x, 1))
    torch.testing.assert_close(softmax.online(x.T.contiguous(), 0), torch.softmax(x, 1).T)
    assert softmax.online(torch.full((2, 3), -torch.inf), 1).isnan().all()
    assert softmax.online(torch.zeros(0, 3), 1).shape == (0, 3)
    assert softmax.online(torch.ones(2, 2), 0, torch.float64).dtype == torch.float64


@settings(max_examples=40)
@given(
    queries=st.integers(1, 9),
    keys=st.integers(1, 300),
    mask=st.sampled_from(["none", "causal", "boolean", "added", "one key"]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    own_scale=st.booleans(),
)
def test_blocked_attention_equals_its_reference_and_pytorch(
    queries: int, keys: int, mask: str, dtype: torch.dtype, own_scale: bool
) -> None:
    q, k, v = (
        tensor(2, 3, queries, 4, dtype=dtype),
        tensor(2, 3, keys, 4, seed=1, dtype=dtype),
        tensor(2, 3, keys, 5, seed=2, dtype=dtype),
    )
    generator = torch.Generator().manual_seed(3)
    options: dict[str, Any] = {"is_causal": mask == "causal", "scale": 0.3 if own_scale else None}
    if mask == "boolean":
        options["attn_mask"] = torch.rand(queries, keys, generator=generator) < 0.5
    elif mask == "added":
        options["attn_mask"] = torch.randn(2, 1, queries, keys, generator=generator, dtype=dtype)
    elif mask == "one key":
        options["attn_mask"] = torch.rand(queries, 1, generator=generator) < 0.5
    blocked, plain, theirs = (
        lambda *t, f=f: f(*t, **options)
        for f in (attention.blocked, attention.reference, functional.scaled_dot_product_attention)
    )
    assert_equal_with_gradients(blocked, plain, q, k, v)
    if mask != "one key":  # PyTorch takes no such mask on every device
        assert_equal_with_gradients(blocked, theirs, q, k, v)


def test_attention_gives_a_mask_its_gradient_and_shares_heads() -> None:
    q, k, v = tensor(1, 4, 5, 4), tensor(1, 2, 200, 4, seed=1), tensor(1, 2, 200, 4, seed=2)
    mask = tensor(1, 1, 5, 200, seed=3)
    blocked, plain = (lambda *t, f=f: f(*t, enable_gqa=True) for f in (attention.blocked, attention.reference))
    assert_equal_with_gradients(blocked, plain, q, k, v, mask)

    def theirs(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

    assert_equal_with_gradients(blocked, theirs, q, k, v, mask)


def test_attention_draws_as_pytorch_would_and_refuses_two_masks() -> None:
    q = tensor(1, 1, 4, 8)
    torch.manual_seed(0)
    mine = attention.blocked(q, q, q, dropout_p=0.5)
    torch.manual_seed(0)
    torch.testing.assert_close(mine, attention.reference(q, q, q, dropout_p=0.5))
    with pytest.raises(RuntimeError, match="not both"):
        attention.blocked(q, q, q, attn_mask=torch.ones(4, 4), is_causal=True)


class Forms(nn.Module):
    """Every form of every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.plain_norm = nn.LayerNorm(8, elementwise_affine=False)
        self.soft = nn.Softmax(dim=-1)
        self.heads = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.plain_norm(self.norm(x))
        x = functional.layer_norm(x, (8,), self.norm.weight, self.norm.bias)
        x = x + torch.softmax(x, dim=1) + functional.softmax(x, dim=-1) + x.softmax(-1) + self.soft(x)
        x = x + functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        attended: Tensor = self.heads(x, x, x, need_weights=False)[0]
        return x + attended


def forms() -> tuple[Forms, Tensor]:
    torch.manual_seed(0)
    return Forms().double(), torch.randn(2, 5, 8, dtype=torch.float64)


def test_a_graph_runs_the_devices_own_operators_over_the_same_parameters() -> None:
    model, x = forms()
    graph = fx.symbolic_trace(model)
    code = graph.code
    module, swaps = rewritten(graph, ALL, CPU)
    assert graph.code == code
    done = [swap for swap in swaps if swap.implementation]
    assert sorted(swap.operator for swap in done) == ["flash_attention"] + ["layer_norm"] * 3 + ["softmax"] * 4
    left = [swap for swap in swaps if not swap.implementation]
    assert [swap.reason for swap in left] == [
        "MultiheadAttention is left alone: it projects, splits heads and attends in one call of its own"
    ]
    calls = {node.target for node in module.graph.nodes if node.op in {"call_function", "call_method"}}
    assert not calls & {functional.layer_norm, torch.softmax, functional.softmax, "softmax"}
    assert {id(p) for p in module.parameters()} <= {id(p) for p in model.parameters()}
    torch.testing.assert_close(module(x), model(x))
    mine = torch.autograd.grad(module(x).square().sum(), model.norm.weight)
    torch.testing.assert_close(mine, torch.autograd.grad(model(x).square().sum(), model.norm.weight))


def test_only_what_is_asked_for_is_swapped() -> None:
    model, x = forms()
    module, swaps = rewritten(fx.symbolic_trace(model), ("softmax",), CPU)
    assert {swap.operator for swap in swaps if swap.implementation} == {"softmax"}
    torch.testing.assert_close(module(x), model(x))
    module, swaps = rewritten(fx.symbolic_trace(model), (), CPU)
    assert swaps == ()
    with pytest.raises(UnknownOperator, match="'Softmaxx'; did you mean 'softmax'"):
        rewritten(fx.symbolic_trace(model), ("Softmaxx",), CPU)


def test_a_module_of_ones_own_is_traced_into() -> None:
    class Own(nn.LayerNorm):
        pass

    module, swaps = rewritten(fx.symbolic_trace(nn.Sequential(Own(4), nn.LayerNorm(4))), ALL, CPU)
    assert [swap.operator for swap in swaps if swap.implementation] == ["layer_norm", "layer_norm"]
    assert "call_module" not in [node.op for node in module.graph.nodes]


def test_a_forward_pass_runs_registered_operators_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = forms()
    expected = model(x)
    seen: list[str] = []

    def watching(name: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return REFERENCES[name](*args, **kwargs)

        return run

    monkeypatch.setattr("plait.train.operators.registry._registered", {})
    for name in CUSTOM_OPS:
        register(name, "cpu", "watched", watching(name))
    undo, reasons = swap_in_forward(model, ALL, CPU)
    torch.testing.assert_close(model(x), expected)
    assert sorted(seen) == ["flash_attention"] + ["layer_norm"] * 3 + ["softmax"] * 4
    assert reasons == tuple(f"{name} runs as watched" for name in ("layer_norm", "softmax", "flash_attention"))
    undo()
    seen.clear()
    torch.testing.assert_close(model(x), expected)
    assert not seen


def test_a_vendor_without_an_implementation_keeps_pytorchs_own() -> None:
    model, _ = forms()
    plain = model.forward
    undo, reasons = swap_in_forward(model, ("layer_norm",), torch.device("meta"))
    assert reasons == ("layer_norm stays PyTorch's own: nothing is registered for meta",)
    assert model.forward == plain
    undo()


def test_blocked_attention_never_holds_all_scores() -> None:
    length = 1024
    q = torch.randn(1, 1, length, 8, requires_grad=True)
    largest = 0

    def pack(saved: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, saved.numel())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        attention.blocked(q, q, q)
    assert largest == length * 8 < length * length
