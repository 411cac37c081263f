"""Every sample of machine topology is read fully right; the facts beside the samples say what that is."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from topology_facts.corpus import Sample, after_damage, read_or_nothing, samples, wrong  # noqa: E402

CORPUS = ROOT.parent / "shared" / "data" / "topology"
SAMPLES = list(samples(CORPUS)) if (CORPUS / "facts.jsonl").is_file() else []
TEXTS = [sample for sample in SAMPLES if sample.kind != "sysfs"]

pytestmark = pytest.mark.skipif(not SAMPLES, reason=f"no topology samples at {CORPUS.name}")


@pytest.mark.parametrize("sample", SAMPLES, ids=[sample.file for sample in SAMPLES])
def test_every_fact_of_the_sample_is_read(sample: Sample) -> None:
    assert wrong(sample) == ()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sample", TEXTS, ids=[sample.file for sample in TEXTS])
def test_damage_neither_crashes_a_reader_nor_invents(sample: Sample, seed: int) -> None:
    outcome = after_damage(sample, read_or_nothing(sample), seed)
    assert (outcome.crash, outcome.invented) == ("", ())


VERDICTS = {
    "man-example1": (False, 0),
    "tree-not-dict": (True, 0),
    "block-blocks-not-list": (True, 0),
    "flat-dict-mutually-exclusive": (True, 0),
    "block-bad-options": (False, 1),
    "flat-bad-options": (False, 1),
    "ring-bad-options": (False, 1),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_networks_of_slurm_are_refused_or_warned_of_as_slurm_does(name: str) -> None:
    from plait.hardware.importers import read_dump
    from plait.hardware.importers.importer import UnreadableDump

    data = (CORPUS / "slurm" / f"topology-yaml-{name}.txt").read_bytes()
    is_refused, warnings = VERDICTS[name]
    if is_refused:
        with pytest.raises(UnreadableDump, match="topology"):
            read_dump(data, name)
    else:
        assert len(read_dump(data, name).warnings) == warnings
