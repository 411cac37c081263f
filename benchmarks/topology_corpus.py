"""How many samples of machine topology are read fully right, and what the readers do with damaged copies of them.

A sample is right when every one of its facts agrees with what was read. A damaged copy may be refused, or yield less;
it must never crash a reader, nor yield a device or a link that the whole sample does not have.
"""

import sys
import time
from collections import Counter
from pathlib import Path

from report import arguments, finish
from topology_facts.corpus import Sample, after_damage, read_or_nothing, samples, wrong

DEFAULT_CORPUS = Path(__file__).resolve().parents[2] / "shared" / "data" / "topology"
_MUTATIONS = 10_000
_QUICK_MUTATIONS = 400


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--corpus", type=Path, default=DEFAULT_CORPUS, metavar="DIR", help="samples with facts.jsonl")
    parser.add_argument("--mutations", type=int, default=None, help=f"damaged copies (default {_MUTATIONS})")
    options = parser.parse_args()
    if not (options.corpus / "facts.jsonl").is_file():
        reason = f"no facts.jsonl in {options.corpus}"
        figures = dict.fromkeys(("right", "total", "crashes", "invented", "mutations"))
        finish("topology_corpus", options.quick, figures, dict.fromkeys(figures, reason), options.json)
        return
    found = list(samples(options.corpus))
    right = tabulate(found)
    count = options.mutations or (_QUICK_MUTATIONS if options.quick else _MUTATIONS)
    crashes, invented = damage(found, count, options.seed)
    figures = {
        "right": float(right),
        "total": float(len(found)),
        "crashes": float(crashes),
        "invented": float(invented),
        "mutations": float(count if found else 0),
    }
    finish("topology_corpus", options.quick, figures, json_path=options.json)


def tabulate(found: list[Sample]) -> int:
    """Prints how many of each kind are right and what is wrong in the others; returns how many are right."""
    total, right = Counter(sample.kind for sample in found), Counter[str]()
    for sample in found:
        faults = wrong(sample)
        right[sample.kind] += not faults
        for fault in faults:
            print(f"{sample.file}: {fault}")
    print(f"{'kind':14} {'right':>6} {'total':>6}")
    for kind in sorted(total):
        print(f"{kind:14} {right[kind]:6d} {total[kind]:6d}")
    return right.total()


def damage(found: list[Sample], count: int, seed: int) -> tuple[int, int]:
    """Reads this many damaged copies, as many of each sample as of any other; returns crashes and inventions."""
    crashes = inventions = refused = 0
    start = time.process_time()
    truths = {sample.file: read_or_nothing(sample) for sample in found}
    for number in range(count if found else 0):
        sample = found[number % len(found)]
        outcome = after_damage(sample, truths[sample.file], seed * 1_000_003 + number)
        crashes += bool(outcome.crash)
        inventions += bool(outcome.invented)
        refused += outcome.is_refused
        if outcome.crash or outcome.invented:
            told = outcome.crash or "; ".join(outcome.invented[:3])
            print(f"copy {number} of {sample.file}: {told}", file=sys.stderr)
    spent = time.process_time() - start
    print(
        f"{count} damaged copies: {refused} refused, {crashes} crashes, {inventions} inventions, {spent:.0f} s of CPU"
    )
    return crashes, inventions


if __name__ == "__main__":
    main()
