"""What is known of some nodes: from this host, from a captured tree, or from files that somebody pasted."""

import dataclasses
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from plait.errors import PlaitError
from plait.hardware.captures import read_machine
from plait.hardware.catalog import known_types, match_model
from plait.hardware.context import Context
from plait.hardware.contexts import LiveContext
from plait.hardware.cost_model import architecture
from plait.hardware.discovery import discover, identify
from plait.hardware.link_rates import ports_of
from plait.hardware.merge import merge
from plait.hardware.probes.path_checks import path_warnings
from plait.hardware.topology import Component, Fragment
from plait.words import did_you_mean

ONLY_NODE = "node"
"""What a node is called whose name no file tells."""


class UnknownHint(PlaitError):
    """A model or a processor is stated that nothing is known of."""


def this_host() -> dict[str, Fragment]:
    """Returns what this host is, under its name."""
    return {platform.node() or ONLY_NODE: from_context(LiveContext())}


def from_context(context: Context) -> Fragment:
    """Returns what a machine is: its kernel's view, and what each vendor's tools say of their devices."""
    whole = discover(context)
    return dataclasses.replace(whole, warnings=(*whole.warnings, *path_warnings(context, whole)))


def from_capture(path: Path) -> dict[str, Fragment]:
    """Returns what a captured machine is: a directory or an archive with its ``/sys`` and recorded commands.

    Raises:
        UnreadableMachine: there is no such capture, or it is damaged; the message names it.
    """
    return {path.name.split(".", 1)[0] or ONLY_NODE: read_machine(path, from_context)}


def from_files(words: Iterable[str]) -> dict[str, Fragment]:
    """Returns what files tell, merged a node: ``FILE``, or ``NODE=FILE`` where there are several nodes.

    Raises:
        UnreadableMachine: a file cannot be opened, or no importer knows its kind; the message names it.
    """
    found: dict[str, list[Fragment]] = {}
    for word in words:
        node, path = _split(word)
        found.setdefault(node, []).append(read_machine(path, from_context))
    return {node: identify(merge(fragments)) for node, fragments in found.items()}


def with_hints(nodes: Mapping[str, Fragment], model: str | None, cpu: str | None) -> dict[str, Fragment]:
    """Returns the nodes with a model for accelerators that have none, and likewise for processors.

    A pasted matrix of links names neither, and both are needed to tell bytes a second.

    Raises:
        UnknownHint: a name means nothing here; the message names the nearest one that does.
    """
    if model and not (ports_of(model) or match_model(model).accelerator_type or model in known_types()):
        raise UnknownHint(f"nothing is known of accelerators called {model!r}{did_you_mean(model, known_types())}")
    if cpu and architecture(cpu) is None:
        raise UnknownHint(f"nothing is known of processors called {cpu!r}; write it as its maker does, as 'EPYC 7742'")
    return {name: _hinted(fragment, model, cpu) for name, fragment in nodes.items()}


def _hinted(fragment: Fragment, model: str | None, cpu: str | None) -> Fragment:
    def told(component: Component) -> Component:
        if model and component.kind in {"gpu", "npu"} and not (component.model or component.accelerator_type):
            return dataclasses.replace(component, model=model)
        if cpu and component.kind == "cpu" and not component.model:
            return dataclasses.replace(component, model=cpu)
        return component

    components = tuple(told(component) for component in fragment.components)
    if cpu and not any(component.kind == "cpu" for component in components):
        components += (Component(key="cpu", name="CPU", kind="cpu", model=cpu),)
    return (
        identify(dataclasses.replace(fragment, components=components))
        if model
        else dataclasses.replace(fragment, components=components)
    )


def _split(word: str) -> tuple[str, Path]:
    node, mark, path = word.partition("=")
    if mark and node and path and not Path(word).exists():
        return node, Path(path)
    return ONLY_NODE, Path(word)
