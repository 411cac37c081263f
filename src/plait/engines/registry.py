"""Engines by name, through the entry point group ``plait.engines``."""

from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import cast

from plait.engines.engine import Engine
from plait.errors import PlaitError
from plait.spec.cluster import Cluster

GROUP = "plait.engines"


def engine_names() -> tuple[str, ...]:
    """Returns the names of all installed engines, sorted."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def load_engine(cluster: Cluster, state_directory: Path) -> Engine:
    """Returns the engine that ``cluster.engine`` names; its code is imported only now.

    Raises:
        PlaitError: No engine of that name is installed, or its code cannot be imported.
    """
    name = cluster.engine
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        near = get_close_matches(name, found, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"installed are: {', '.join(sorted(found)) or 'none'}"
        raise PlaitError(f"there is no engine {name!r}; {hint}")
    try:
        engine_class = found[name].load()
    except ImportError as error:
        raise PlaitError(f"engine {name!r} needs a package that is not installed: {error}") from error
    return cast("Engine", engine_class(cluster, state_directory))
