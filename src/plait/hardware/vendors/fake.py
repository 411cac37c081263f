"""Devices that do not exist, for tests and for emulated clusters: named in a variable or described in a YAML file.

``PLAIT_FAKE_DEVICES=A100:8,V100:4`` names types and counts; ``PLAIT_FAKE_DEVICES=/path/to/devices.yaml`` a file::

    devices:
      - {type: A100-SXM4-80GB, count: 8, numa: [0, 0, 0, 0, 1, 1, 1, 1], health: ok}
    links:
      - {between: [0, 1], kind: nvlink, count: 12, gb_per_s: 300}
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from plait.hardware.context import Context
from plait.hardware.topology import Component, Fragment, Link, LinkKind, Locality
from plait.hardware.values import Source, Value

VARIABLE = "PLAIT_FAKE_DEVICES"
_LIST = re.compile(r"[A-Za-z0-9_-]+(:\d+)?(,[A-Za-z0-9_-]+(:\d+)?)*")
_GB = 1e9


class Fake:
    """Believes the variable ``PLAIT_FAKE_DEVICES``."""

    name = "fake"
    ways: tuple[str, ...] = (VARIABLE,)
    finds: tuple[str, ...] = ("type", "memory", "NUMA node", "health", "links")
    visibility: tuple[str, ...] = ()

    def trace(self, ctx: Context) -> str | None:
        """Returns the variable where it is set."""
        text = ctx.env.get(VARIABLE)
        return f"{VARIABLE}={text}" if text else None

    def probe(self, ctx: Context, *, use_library: bool = True) -> Fragment:  # noqa: ARG002
        """Returns the described devices, all marked as ``fake``."""
        text = ctx.env.get(VARIABLE, "")
        origin = f"{VARIABLE}={text}"
        try:
            devices, links = _described(ctx, text)
            components = tuple(_component(index, device) for index, device in enumerate(devices))
            return Fragment(
                origin=origin,
                format=self.name,
                components=components,
                links=tuple(_link(components, link) for link in links),
                source=Source.USER,
            )
        except (ValueError, TypeError, KeyError, IndexError) as error:
            return Fragment(origin=origin, format=self.name, error=f"{VARIABLE}: {error}")


def _described(ctx: Context, text: str) -> tuple[list[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    if _LIST.fullmatch(text):
        rows: Sequence[Any] = [
            {"type": name, "count": int(count or 1)}
            for name, _, count in (part.partition(":") for part in text.split(","))
        ]
        links: Sequence[Any] = ()
    else:
        data = ctx.read(text)
        if data is None:
            raise ValueError(f"{text}: neither TYPE:COUNT,... nor a file that can be read")
        import yaml

        try:
            document = yaml.safe_load(data)
        except yaml.YAMLError as error:
            raise ValueError(f"{text}: not YAML ({error})") from None
        if not isinstance(document, Mapping) or not isinstance(document.get("devices"), list):
            raise ValueError(f"{text}: wants a list under `devices`")
        rows, links = document["devices"], document.get("links") or ()
    devices: list[Mapping[str, Any]] = []
    for row in rows:
        count = int(row.get("count", 1))
        devices += ({key: _nth(key, value, number, count) for key, value in row.items()} for number in range(count))
    return devices, links


def _nth(key: str, value: Any, number: int, count: int) -> Any:
    if not isinstance(value, list):
        return value
    if len(value) != count:
        raise ValueError(f"{key} lists {len(value)} values for {count} devices")
    return value[number]


def _component(index: int, device: Mapping[str, Any]) -> Component:
    from plait.hardware.catalog import capability
    from plait.hardware.catalog.rows import types, variants

    kind = str(device["type"])
    figures = capability(kind) if kind in types() or kind in variants() else None
    if figures is None:
        from plait.words import did_you_mean

        raise ValueError(f"unknown accelerator type {kind!r}{did_you_mean(kind, types())}")
    numa = device.get("numa")
    memory = device.get("memory_bytes", figures.memory_bytes)
    return Component(
        key=f"fake{index}",
        name=f"fake{index}",
        kind="npu" if figures.vendor in {"Huawei", "Cambricon", "Google", "AWS"} else "gpu",
        vendor="fake",
        model=kind,
        accelerator_type=kind,
        index=index,
        memory_bytes=Value(None if memory is None else int(memory), Source.USER, VARIABLE),
        locality=Locality(
            numa_nodes=None if numa is None else (int(numa),), why_unknown="" if numa is not None else "not described"
        ),
        health=str(device.get("health", "ok")),
        extra={"match": "as described; this device does not exist"},
    )


def _link(components: Sequence[Component], link: Mapping[str, Any]) -> Link:
    first, second = link["between"]
    kind: LinkKind = link["kind"]
    if kind not in get_args(LinkKind):
        raise ValueError(f"unknown kind of link {kind!r}; known are {', '.join(get_args(LinkKind))}")
    rate = link.get("gb_per_s")
    value = Value(None if rate is None else float(rate) * _GB, Source.USER, VARIABLE)
    return Link(
        a=components[int(first)].key,
        b=components[int(second)].key,
        kind=kind,
        count=int(link.get("count", 1)),
        bytes_per_s=value,
        reverse_bytes_per_s=value,
    )
