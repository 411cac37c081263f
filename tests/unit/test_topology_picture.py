"""The picture of a topology: valid SVG, nothing covers anything else, names are escaped, everything is there."""

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from plait.hardware.affinity import build
from plait.hardware.picture import render
from plait.hardware.picture.drawing import STEPS_GB_PER_S, step_of
from plait.hardware.topology import Component, Fragment, Link, LinkKind, Locality
from plait.hardware.values import Source, Value

SVG = "{http://www.w3.org/2000/svg}"


def machine(devices: int, nics: int, kind: LinkKind = "pix", name: str = "GPU") -> Fragment:
    parts = [
        Component(
            key=f"g{i}",
            name=f"{name}{i}",
            kind="gpu",
            index=i,
            model="NVIDIA H100 80GB HBM3",
            locality=Locality(numa_nodes=(2 * i // devices,)),
        )
        for i in range(devices)
    ]
    adapters = [
        Component(
            key=f"n{i}", name=f"mlx5_{i}", kind="nic", rate_bytes_per_s=Value(50e9 if i % 2 else None, Source.SYSFS)
        )
        for i in range(nics)
    ]
    links = [Link(a=f"g{i}", b=f"g{j}", kind=kind, count=2) for i, j in itertools.combinations(range(devices), 2)]
    links += [Link(a=f"g{i % max(1, devices)}", b=f"n{i}", kind="pix") for i in range(nics) if devices]
    return Fragment(origin="t", format="t", components=(*parts, *adapters), links=tuple(links))


def picture(*machines: Fragment) -> ET.Element:
    nodes = {f"node{i}": fragment for i, fragment in enumerate(machines)}
    return ET.fromstring(render(nodes, build(nodes)))


def places(svg: ET.Element, *classes: str) -> list[tuple[float, float, float, float]]:
    return [
        tuple(float(rect.get(name, "nan")) for name in ("x", "y", "width", "height"))  # type: ignore[misc]
        for rect in svg.iter(f"{SVG}rect")
        if rect.get("class") in classes
    ]


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(one[i] < other[i] + other[i + 2] and other[i] < one[i] + one[i + 2] for i in (0, 1))


@pytest.mark.parametrize("kind", ["nvlink", "pix", "sys", "xgmi"])
@pytest.mark.parametrize(("devices", "nics"), [(16, 16), (8, 10), (1, 0), (3, 1), (2, 16), (0, 2)])
def test_no_box_covers_another_and_all_are_inside(devices: int, nics: int, kind: LinkKind) -> None:
    svg = picture(machine(devices, nics, kind))
    boxes = places(svg, "tile", "box")
    for one, other in itertools.combinations(boxes, 2):
        assert not overlap(one, other)
    (node,) = places(svg, "node")
    for x, y, width, height in boxes:
        assert node[0] <= x
        assert x + width <= node[0] + node[2]
        assert node[1] <= y
        assert y + height <= node[1] + node[3]
    page = [float(svg.get(name, "nan")) for name in ("width", "height")]
    assert node[0] + node[2] < page[0]
    assert node[1] + node[3] < page[1]


def test_every_device_nic_and_pair_is_drawn() -> None:
    svg = picture(machine(16, 16))
    words = [text.text for text in svg.iter(f"{SVG}text")]
    for i in range(16):
        assert f"GPU{i}" in words
        assert f"mlx5_{i}" in words
    tips = [title.text or "" for title in svg.iter(f"{SVG}title")]
    pairs = {match.group(1, 2) for tip in tips if (match := re.match(r"GPU(\d+) to GPU(\d+):", tip))}
    assert len({(a, b) for a, b in pairs if a != b}) == 16 * 15


def test_text_keeps_inside_its_tile() -> None:
    svg = picture(machine(4, 4, name="a device with a very long name "))
    tiles = places(svg, "tile")
    for text in svg.iter(f"{SVG}text"):
        x, y = float(text.get("x", "nan")), float(text.get("y", "nan"))
        for left, top, width, height in tiles:
            if left <= x <= left + width and top <= y <= top + height:
                size = 5.9 if "small" in text.get("class", "") else 7.4
                assert x + size * len(text.text or "") <= left + width + 1


def test_names_are_escaped() -> None:
    svg = picture(machine(2, 0, name="<b>&"))
    assert any("<b>&0" in (text.text or "") for text in svg.iter(f"{SVG}text"))


def test_nodes_stand_below_one_another_with_their_fabric() -> None:
    svg = picture(machine(2, 1), machine(4, 1), machine(1, 1))
    first, second, third = places(svg, "node")
    assert first[1] + first[3] < second[1]
    assert second[1] + second[3] < third[1]
    assert any("node0 to node2" in (text.text or "") for text in svg.iter(f"{SVG}text"))


def test_colours_follow_the_rate() -> None:
    steps = [step_of(rate * 1e9) for rate in (0.1, *STEPS_GB_PER_S)]
    assert steps == list(range(len(STEPS_GB_PER_S) + 1))


def test_it_is_readable_on_dark_pages() -> None:
    text = render({"n": machine(2, 0)}, build({"n": machine(2, 0)}))
    assert "prefers-color-scheme: dark" in text
