"""Writes the pictures of the documentation from the files under ``examples``; run it after a change of drawing."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "topology"
TOPOLOGY = Path(__file__).parent / "guide" / "topology.svg"
MODEL, PROCESSOR = "NVIDIA RTX A6000", "AMD EPYC 7742"


def topology_picture() -> str:
    """Returns the picture of the example machine, as ``plait topology`` draws it with this model and processor."""
    from plait.hardware.affinity import build
    from plait.hardware.gather import from_files, with_hints
    from plait.hardware.picture import render

    found = from_files(f"box={EXAMPLE / name}" for name in ("topo.txt", "ibstat.txt"))
    nodes = with_hints(found, MODEL, PROCESSOR)
    return render(nodes, build(nodes), "A machine with eight accelerators and four NICs")


if __name__ == "__main__":
    TOPOLOGY.write_text(topology_picture(), encoding="utf-8")
