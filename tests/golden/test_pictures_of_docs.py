"""The pictures in the documentation are those that the code draws. After a wanted change: docs/generate_pictures.py."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_topology_of_the_guide_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_pictures", DOCS / "generate_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = module.topology_picture()
    assert drawn == module.TOPOLOGY.read_text(encoding="utf-8")
