import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from plait.hardware.device import DeviceCapability
from plait.spec.job import DevicePrecision, PrecisionPlan
from plait.train.precision import ComputePrecision, PrecisionUnsupported, check_reduce, compute_plan
from plait.train.scaling import GlobalScale, autocast_forward, scale_backward, set_tf32

PLAN = PrecisionPlan(
    global_precision="fp32",
    device_specific=(
        DevicePrecision(accelerator_type="A100", precision="tf32"),
        DevicePrecision(accelerator_type="V100", precision="fp16"),
        DevicePrecision(accelerator_type="H100", precision="bf16"),
        DevicePrecision(accelerator_type="L4", precision="int8"),
    ),
)


def capability(name: str, *precisions: str) -> DeviceCapability:
    return DeviceCapability(accelerator_type=name, vendor="nvidia", precisions=frozenset(precisions))


def test_each_type_computes_in_its_own() -> None:
    a100 = compute_plan(PLAN, "A100", capability("A100", "fp32", "tf32", "bf16"))
    assert (a100.autocast, a100.uses_tf32, a100.needs_scaling) == (None, True, False)
    assert a100.reason == "A100 computes in tf32, since precision.device_specific names A100"
    v100 = compute_plan(PLAN, "V100", capability("V100", "fp32", "fp16"))
    assert (v100.autocast, v100.uses_tf32, v100.needs_scaling) == ("fp16", False, True)
    h100 = compute_plan(PLAN, "H100")
    assert (h100.autocast, h100.needs_scaling) == ("bf16", False)
    assert h100.reason.endswith("and what the device has is not known")
    t4 = compute_plan(PLAN, "T4")
    assert (t4.precision, t4.autocast, t4.uses_tf32) == ("fp32", None, False)
    assert "precision.global holds" in t4.reason


def test_a_type_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(PrecisionUnsupported, match="A100 does not compute in tf32; it has fp16 or fp32"):
        compute_plan(PLAN, "A100", capability("A100", "fp32", "fp16"))
    with pytest.raises(PrecisionUnsupported, match="L4 is to compute in int8, but a training step runs in fp64,"):
        compute_plan(PLAN, "L4", capability("L4", "int8"))
    check_reduce(PLAN)
    with pytest.raises(PrecisionUnsupported, match=r"gradients cannot meet in tf32; precision\.reduce is fp64, fp32"):
        check_reduce(PrecisionPlan(reduce="tf32"))


def test_the_decision_needs_no_torch() -> None:
    code = "import sys, plait.train.precision; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_scale_grows_backs_off_and_travels() -> None:
    scale = GlobalScale(scale=8.0, growth_interval=3)
    for _ in range(2):
        scale = scale.after(0.0)
    assert scale.scale == 8.0
    assert scale.after(0.0).scale == 16.0
    hit = scale.after(2.0)
    assert (hit.scale, hit.num_good) == (4.0, 0)
    assert GlobalScale.from_state_dict(json.loads(json.dumps(hit.state_dict()))) == hit
    lowest = GlobalScale(scale=2.0**-24).after(1.0)
    assert lowest.scale > 0.0


def test_scale_backward_is_the_identity_forward() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = scale_backward(x, 128.0)
    assert torch.equal(y, x)
    (y * torch.tensor([1.0, 3.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [128.0, 384.0]


def fp16() -> ComputePrecision:
    return compute_plan(PLAN, "V100")


def test_small_gradients_survive_float16_only_with_the_scale() -> None:
    gradients = {}
    for scale in (1.0, 2.0**16):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        autocast_forward(model, fp16(), "cpu", lambda scale=scale: scale)  # type: ignore[misc]
        output = model(torch.ones(3, 4))
        assert output.dtype is torch.float32
        (output.sum() * 1e-9).backward()
        assert model.weight.grad is not None
        assert model.weight.grad.dtype is torch.float32
        gradients[scale] = model.weight.grad / scale
    assert float(gradients[1.0].abs().max()) == 0.0
    torch.testing.assert_close(gradients[2.0**16], torch.full((2, 4), 3e-9), rtol=2e-3, atol=0.0)


def test_inputs_get_their_true_gradient() -> None:
    model = nn.Linear(4, 2)
    x = torch.ones(3, 4, requires_grad=True)
    model(x).sum().backward()
    expected, x.grad = x.grad, None
    undo = autocast_forward(model, fp16(), "cpu", lambda: 1024.0)
    model(x).sum().backward()
    torch.testing.assert_close(x.grad, expected, rtol=2e-3, atol=1e-3)
    undo()
    x.grad = None
    model(x).sum().backward()
    assert torch.equal(x.grad, expected)  # type: ignore[arg-type]


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, batch: dict[str, torch.Tensor], *, twice: bool) -> dict[str, object]:
        y = self.layer(batch["x"])
        return {"y": y, "more": (y * 2 if twice else y, "note"), "labels": torch.arange(2)}


def test_nested_inputs_and_outputs_pass_through() -> None:
    model = Several()
    autocast_forward(model, compute_plan(PLAN, "H100"), "cpu", lambda: 1.0)
    result = model({"x": torch.ones(1, 2)}, twice=True)
    assert result["y"].dtype is torch.float32
    assert result["more"][1] == "note"
    assert result["labels"].dtype is torch.int64


def test_float32_changes_nothing() -> None:
    model = nn.Linear(2, 2)
    autocast_forward(model, compute_plan(PLAN, "T4"), "cpu", lambda: 1024.0)
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_evaluation_is_not_scaled() -> None:
    model = nn.Linear(2, 2)
    autocast_forward(model, fp16(), "cpu", lambda: 1024.0)
    with torch.no_grad():
        assert not model(torch.ones(1, 2)).requires_grad


def test_tf32_is_set_and_taken_back() -> None:
    before = torch.get_float32_matmul_precision()
    set_tf32(compute_plan(PLAN, "A100"))
    assert torch.get_float32_matmul_precision() == "high"
    set_tf32(compute_plan(PLAN, "T4"))
    assert torch.get_float32_matmul_precision() == "highest"
    torch.set_float32_matmul_precision(before)
