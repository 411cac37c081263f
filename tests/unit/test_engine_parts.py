"""The registry of engines and what this machine has to offer."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from plait.engines.local import LocalEngine
from plait.engines.registry import engine_names, load_engine
from plait.engines.this_machine import accelerator_type, emulated_speed, nvidia_devices
from plait.errors import PlaitError
from plait.spec.cluster import Cluster, EmulatedNode


def test_the_local_engine_is_found_by_its_name(tmp_path: Path) -> None:
    assert "local" in engine_names()
    assert isinstance(load_engine(Cluster(engine="local"), tmp_path), LocalEngine)


def test_an_unknown_engine_gets_the_nearest_name(tmp_path: Path) -> None:
    wrong = replace(Cluster(), engine=cast("Any", "lokal"))
    with pytest.raises(PlaitError, match="'lokal'; did you mean 'local'"):
        load_engine(wrong, tmp_path)


@pytest.mark.parametrize(
    ("product", "word"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA Strange Card 9", "Strange-Card-9"),
    ],
)
def test_products_are_named_by_the_catalogue(product: str, word: str) -> None:
    assert accelerator_type(product) == word


def test_devices_are_counted_by_what_the_vendors_tool_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools, devices = tmp_path / "bin", tmp_path / "dev"
    tools.mkdir()
    devices.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA A100-SXM4-40GB'\necho 'Tesla T4'\n")
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    (devices / "nvidiactl").touch()
    assert nvidia_devices(devices) == ()
    (devices / "nvidia0").touch()
    assert nvidia_devices(devices) == ("A100", "T4")


def test_the_speed_of_an_emulated_device_is_its_part_of_the_quota() -> None:
    node = EmulatedNode(name="a", accelerator="A100", slots=2, cpu_quota=1.0)
    assert emulated_speed(node, others_have_quotas=True) == 0.5


def test_without_any_quota_published_figures_count() -> None:
    fast, slow = (EmulatedNode(name=name, accelerator=name) for name in ("A100", "T4"))
    assert emulated_speed(fast, others_have_quotas=False) > emulated_speed(slow, others_have_quotas=False)
    unknown = EmulatedNode(name="x", accelerator="X9000")
    assert emulated_speed(unknown, others_have_quotas=False) == 1.0
    assert emulated_speed(fast, others_have_quotas=True) <= 1.0
