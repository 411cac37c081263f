"""Keys of a file against the keys that are allowed at each place."""

from collections.abc import Iterator
from typing import Any, get_args

from plait.spec.document import Document
from plait.spec.tree import Entry, Mapping, Node, Path, Report, Scalar, Sequence
from plait.words import likeness, nearest

# Keys that other programs have for what is meant here.
_SLIPS = {
    "depends_on": "needs",
    "dependencies": "needs",
    "environment": "env",
    "cmd": "command",
    "run": "command",
    "cwd": "working_directory",
    "workdir": "working_directory",
    "replicas": "workers",
    "every": "interval",
    "devices": "slots",
    "cpus": "cpu_quota",
}

_SURE = 0.75
"""From this likeness on a wrong key is read as the right one, so that its value is checked too."""


def allowed_keys(form: type[Document]) -> dict[str, Any]:
    """Returns the keys of a mapping of this form, each with the type of its value."""
    return {field.alias or name: field.annotation for name, field in form.model_fields.items()}


class KeyCheck:
    """One pass over the tree that reports unknown keys and keys without value, and returns a tree without them.

    ``forms`` tells which mapping is expected at which path; ``excused`` holds the paths of keys that are missing only
    because they were misspelt or left empty, which has been reported.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self.forms: dict[Path, type[Document]] = {}
        self.excused: set[Path] = set()
        self._homes: dict[str, str | None] = {}

    def clean(self, node: Node, form: type[Document], path: Path = ()) -> Node:
        """Returns the node with right keys only; a misspelt key whose meaning is plain gets its right name."""
        if not path:
            self._homes = dict(_homes(form))
        self.forms[path] = form
        if not isinstance(node, Mapping):
            return node
        allowed = allowed_keys(form)
        taken = {entry.key for entry in node.entries}
        kept = Mapping(node.place)
        for entry in node.entries:
            key: str | None = entry.key
            if entry.key not in allowed:
                key = self._unknown(entry, allowed, taken, path)
            if key is None:
                continue
            if isinstance(entry.node, Scalar) and entry.node.value() is None:
                self._report.add(entry.key_place, (*path, key), "this key has no value; give it one or remove it")
                self.excused.add((*path, key))
                continue
            value = self._clean_value(entry.node, allowed[key], (*path, key))
            kept.entries.append(Entry(key, entry.key_place, value))
        return kept

    def _clean_value(self, node: Node, annotation: Any, path: Path) -> Node:
        form = next(_forms_in(annotation), None)
        if form is None:
            return node
        if not _is_list(annotation):
            return self.clean(node, form, path)
        if not isinstance(node, Sequence):
            return node
        return Sequence(node.place, [self.clean(item, form, (*path, i)) for i, item in enumerate(node.items)])

    def _unknown(self, entry: Entry, allowed: dict[str, Any], taken: set[str], path: Path) -> str | None:
        slip = _SLIPS.get(entry.key)
        near = slip if slip in allowed else nearest(entry.key, allowed)
        home = self._homes.get(entry.key)
        if near is not None:
            hint = f"did you mean {near!r}?"
        else:
            hint = f"it belongs in {home}" if home else f"keys here are {', '.join(allowed)}"
        self._report.add(entry.key_place, (*path, entry.key), f"unknown key; {hint}")
        if near is None or near in taken:
            return None
        taken.add(near)
        self.excused.add((*path, near))
        return near if near == slip or likeness(entry.key, near) >= _SURE else None


def _homes(form: type[Document], place: str = "") -> Iterator[tuple[str, str | None]]:
    """Yields each key with the place that it belongs in, or ``None`` where there are several."""
    seen: dict[str, str | None] = {}
    for key, annotation in allowed_keys(form).items():
        for inner in _forms_in(annotation):
            for name, home in _homes(inner, f"{place}.{key}" if place else key):
                seen[name] = None if name in seen else home
    own = dict.fromkeys(allowed_keys(form), place) if place else {}  # a section goes before the sections in it
    yield from {**seen, **own}.items()


def _forms_in(annotation: Any) -> Iterator[type[Document]]:
    if isinstance(annotation, type) and issubclass(annotation, Document):
        yield annotation
    for part in get_args(annotation):
        yield from _forms_in(part)


def _is_list(annotation: Any) -> bool:
    origins = (annotation, *get_args(annotation))
    return any(getattr(origin, "__origin__", None) is list or _is_annotated_list(origin) for origin in origins)


def _is_annotated_list(annotation: Any) -> bool:
    arguments = get_args(annotation)
    return bool(arguments) and getattr(arguments[0], "__origin__", None) is list
