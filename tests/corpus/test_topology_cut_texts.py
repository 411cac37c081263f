"""A text that ends early says a subset of what the whole one says, wherever it is cut, down to half a word."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from topology_facts.corpus import Sample, read_or_nothing, samples  # noqa: E402
from topology_facts.mutate import beyond  # noqa: E402
from topology_facts.text_kinds import KINDS  # noqa: E402

CORPUS = ROOT.parent / "shared" / "data" / "topology"
TEXTS = [s for s in samples(CORPUS) if s.kind in KINDS] if (CORPUS / "facts.jsonl").is_file() else []
_CUTS = 14

pytestmark = pytest.mark.skipif(not TEXTS, reason=f"no topology samples at {CORPUS.name}")


@pytest.mark.parametrize("sample", TEXTS, ids=[sample.file for sample in TEXTS])
def test_a_cut_sample_says_a_subset(sample: Sample) -> None:
    whole = read_or_nothing(sample)
    step = max(1, len(sample.data) // _CUTS)
    for end in range(len(sample.file) % step, len(sample.data), step):
        part = read_or_nothing(Sample(sample.file, sample.kind, sample.data[:end], {}))
        assert beyond(whole, part) == (), end
