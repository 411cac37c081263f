"""Every sample that can be read can be joined with another, built, drawn and told; nothing is invented on the way."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from plait.cli.topology_view import document
from plait.errors import PlaitError
from plait.hardware.affinity import build
from plait.hardware.findings import findings
from plait.hardware.importers import read_dump
from plait.hardware.merge import merge
from plait.hardware.picture import render
from plait.hardware.topology import Fragment

pytestmark = pytest.mark.slow

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "data" / "topology"
FOLDERS = sorted(path.name for path in CORPUS.iterdir() if path.is_dir()) if CORPUS.is_dir() else []


def fragments(folder: str) -> list[Fragment]:
    found = []
    for path in sorted((CORPUS / folder).iterdir()):
        try:
            found.append(read_dump(path.read_bytes(), path.name))
        except PlaitError:
            continue  # some samples are there to be refused
    return found


@pytest.mark.skipif(not FOLDERS, reason="the corpus of topologies is not beside the repository")
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_sample_is_built_drawn_and_told(folder: str) -> None:
    for fragment in fragments(folder):
        nodes = {"n": fragment}
        matrix = build(nodes)
        assert set(matrix.devices) <= {f"n/{c.key}" for c in fragment.components}
        rates = matrix.bytes_per_s[matrix.known]
        assert (rates > 0).all(), fragment.origin
        assert (rates < 20e12).all(), fragment.origin
        assert np.array_equal(
            np.isnan(matrix.low_bytes_per_s) | (matrix.low_bytes_per_s > 0), np.ones_like(matrix.known)
        )
        ET.fromstring(render(nodes, matrix))
        json.dumps(document(nodes, matrix, findings(nodes, matrix, {}), ()), allow_nan=False)


@pytest.mark.skipif(not FOLDERS, reason="the corpus of topologies is not beside the repository")
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_sample_joined_with_itself_is_itself(folder: str) -> None:
    for fragment in fragments(folder):
        twice = merge([fragment, fragment])
        assert len(twice.components) == len(fragment.components), fragment.origin
        assert set(twice.links) <= set(fragment.links), fragment.origin
        assert len(twice.conflicts) <= len(fragment.conflicts), fragment.origin


@pytest.mark.skipif(not FOLDERS, reason="the corpus of topologies is not beside the repository")
def test_samples_of_different_machines_can_be_joined_without_a_crash() -> None:
    every = [fragment for folder in FOLDERS for fragment in fragments(folder)[:4]]
    for one, other in zip(every, every[1:] + every[:1], strict=True):
        joined = merge([one, other])
        keys = [c.key for c in joined.components]
        assert len(keys) == len(set(keys))
        build({"n": joined})
