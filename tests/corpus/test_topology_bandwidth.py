"""Predicted bandwidth beside what others measured: pairs within a quarter, all pairs at once within a factor of two."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT.parent / "shared" / "data" / "topology"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = ROOT / "benchmarks" / "topology_bandwidth.py"
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location("topology_bandwidth", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["topology_bandwidth"] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of topologies is not beside the repository")
def test_four_pairs_of_five_are_within_a_quarter(benchmark: ModuleType) -> None:
    known = [pair for pair in benchmark.pairs_of_corpus(CORPUS) if pair.is_model_known]
    assert len(known) > 100
    near = sum(pair.error is not None and pair.error <= 0.25 for pair in known)
    assert near / len(known) >= 0.8


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of topologies is not beside the repository")
def test_a_model_that_nobody_states_gets_no_figure(benchmark: ModuleType) -> None:
    unknown = [pair for pair in benchmark.pairs_of_corpus(CORPUS) if not pair.is_model_known]
    assert unknown
    assert all(pair.predicted is None for pair in unknown)


def test_all_pairs_at_once_are_within_a_factor_of_two(benchmark: ModuleType) -> None:
    for case in benchmark.CONTENDED:
        _, ratio, reason = benchmark.contended_ratio(case)
        assert ratio <= 2, f"{case.name}: {reason}"


def test_pairs_alone_would_be_far_off_at_once(benchmark: ModuleType) -> None:
    """What groups are for: the sum of the pairs says several times more than these machines do."""
    for case in benchmark.CONTENDED[:3]:
        matrix = benchmark.contended_matrix(case)
        ports = sum(matrix.bytes_per_s[i].max(initial=0, where=matrix.known[i]) for i in range(case.size))
        assert ports / case.measured > 2


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("8x H100 SXM (HGX)", "H100 SXM"),
        ("V100 PCIe 32GB", "V100 PCIe 32GB"),
        ("AMD 738c (MI100)", "738c"),
        ("6 GPUs, model not stated", None),
        ("2x p5.48xlarge", None),
    ],
)
def test_models_in_descriptions(benchmark: ModuleType, text: str, model: str | None) -> None:
    from plait.hardware.link_rates import ports_of

    found = benchmark.model_in(text)
    assert (found is None) == (model is None)
    assert ports_of(found) == ports_of(model)
