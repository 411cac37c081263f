"""Engines by name: those of Plait, and installed ones through the entry point group ``plait.engines``."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final, cast

from plait.engines.engine import Engine
from plait.errors import PlaitError
from plait.spec.cluster import Cluster
from plait.words import did_you_mean

GROUP: Final = "plait.engines"
BUILT_IN: Final = {"local": "plait.engines.local:LocalEngine"}

EngineClass = Callable[[Cluster, Path], Engine]


def engine_names() -> tuple[str, ...]:
    """Returns the names of all engines, sorted."""
    return tuple(sorted({*BUILT_IN, *_installed()}))


def engine_class(name: str) -> EngineClass:
    """Returns the class of an engine; only its own module is imported.

    Raises:
        PlaitError: There is no such engine, or its code needs a package that is not installed.
    """
    try:
        if name in BUILT_IN:
            module, _, attribute = BUILT_IN[name].partition(":")
            return cast("EngineClass", getattr(import_module(module), attribute))
        if point := _installed().get(name):
            return cast("EngineClass", point.load())
    except ImportError as error:
        raise PlaitError(f"engine {name!r} needs a package that is not installed: {error}") from error
    known = engine_names()
    raise PlaitError(f"there is no engine {name!r}{did_you_mean(name, known) or '; there are ' + ', '.join(known)}")


def load_engine(cluster: Cluster, state_directory: Path) -> Engine:
    """Returns the engine that ``cluster.engine`` names; nothing happens before its ``prepare``."""
    return engine_class(cluster.engine)(cluster, state_directory)


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
