"""Codecs: how many GB/s of fp32 does one core turn into messages and back?

The worker step of 1-bit Adam is the whole of what a worker does to 25 million gradients before they leave: momentum,
error of the last step, scales, bits, error of this step. ``sign1_numba_gb_per_s`` is that step with Numba,
``sign1_fallback_gb_per_s`` the same without it (PyTorch and NumPy in place). All figures are 4 bytes a value over the
median CPU time of one thread; the forms take turns, so that all see the same machine. Copying the same values is timed
beside them: where memory is slow, because the machine is busy or because it is built that way, all forms are slow with
it, so each row also says how it compares. No step can be faster than its three inputs can be read, which is a row of
its own; and one more row does the same step again and again on values that stay in the cache, which shows what is the
step's and what is the memory's. The two figures are those of 25 million values.
"""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from plait.errors import PlaitError
from plait.train.compression import CODECS, Codec, reference, warm_up
from plait.train.compression.low_rank import LowRank, low_rank_layout
from plait.train.compression.sign1 import Sign1
from report import arguments, finish

VALUES = 25_000_000
CACHED_VALUES = 125_000
"""Values that stay in a second-level cache of 2 MiB, with everything else of a worker step."""
ROWS = 5_000
ROUNDS, QUICK_ROUNDS = 21, 7
SLOW_ROUNDS = 3
"""The plain NumPy reference is timed in as many of the rounds: it is there for its text, not for its speed."""

Work = Callable[[], object]


def sign1_rows(label: str, form: Sign1, run: torch.Tensor, state: torch.Tensor) -> dict[str, Work]:
    error, spare = torch.zeros(VALUES), torch.zeros(VALUES)
    message = torch.zeros(form.wire_bytes(VALUES), dtype=torch.uint8)

    def step(new_error: torch.Tensor) -> None:
        form.encode_momentum(run, state, error, new_error, message, beta=0.9, weight=0.25)

    few, few_states, few_errors = (values[:CACHED_VALUES].clone() for values in (run, state, error))
    short_message = torch.zeros(form.wire_bytes(CACHED_VALUES), dtype=torch.uint8)

    def steps_in_cache() -> None:
        for _ in range(VALUES // CACHED_VALUES):
            form.encode_momentum(few, few_states, few_errors, few_errors, short_message, beta=0.9, weight=0.25)

    return {
        f"sign1 worker step, {label}": lambda: step(error),
        f"sign1 worker step in the cache, {label}": steps_in_cache,
        f"sign1 worker step to a second error, {label}": lambda: step(spare),
        f"sign1 decode, {label}": lambda: form.decode(message, spare),
        f"sign1 decode and add, {label}": lambda: form.decode(message, spare, add=True),
    }


def codec_rows(form: Codec, run: torch.Tensor, error: torch.Tensor, out: torch.Tensor) -> dict[str, Work]:
    message = torch.zeros(form.wire_bytes(VALUES), dtype=torch.uint8)
    kept = error if form.feeds_back else None
    return {
        f"{form.name} encode": lambda: form.encode(run, kept, kept, message),
        f"{form.name} decode": lambda: form.decode(message, out),
    }


def low_rank_row(run: torch.Tensor, error: torch.Tensor, out: torch.Tensor) -> Work:
    state = LowRank(low_rank_layout([(ROWS, VALUES // ROWS)], rank=1))
    return lambda: state.finish(state.second(state.first(run, error)), out, error)


def reference_step(run: torch.Tensor, state: torch.Tensor, error: torch.Tensor) -> None:
    c = reference.momentum(run.numpy(), state.numpy(), error.numpy(), 0.9, 0.25)
    reference.sign1_encode(c)


def timed(works: dict[str, Work], rounds: int) -> dict[str, float]:
    """Returns the median CPU seconds of each work."""
    spent: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            if "reference" in name and number > SLOW_ROUNDS:
                continue
            start_s = time.process_time()
            work()
            if number:  # the first round touches all memory for the first time
                spent[name].append(time.process_time() - start_s)
    return {name: median(times) for name, times in spent.items()}


def main() -> None:
    options = arguments(__doc__.partition("\n")[0] if __doc__ else "").parse_args()
    torch.set_num_threads(1)
    numbers = np.random.default_rng(options.seed)
    run, state = (torch.from_numpy(numbers.standard_normal(VALUES, dtype=np.float32)) for _ in range(2))
    out, error = torch.zeros(VALUES), torch.zeros(VALUES)
    works: dict[str, Work] = {
        "copy": lambda: out.copy_(run),
        "read three runs": lambda: [each.sum() for each in (run, state, error)],
    }
    reasons = {}
    try:
        with_numba = Sign1(use_numba=True)
    except PlaitError as reason:
        reasons["sign1_numba_gb_per_s"] = str(reason)
    else:
        warm_up(with_numba)
        works |= sign1_rows("Numba", with_numba, run, state)
    works |= sign1_rows("without Numba", Sign1(use_numba=False), run, state)
    works["sign1 worker step, NumPy reference"] = lambda: reference_step(run, state, error)
    for name in ("int8", "bf16", "fp16"):
        form = CODECS[name]()
        warm_up(form)
        works |= codec_rows(form, run, error, out)
    works["low_rank, rank 1, whole step"] = low_rank_row(run, error, out)
    times = timed(works, QUICK_ROUNDS if options.quick else ROUNDS)
    rates = {name: 4 * VALUES / spent_s / 1e9 for name, spent_s in times.items()}
    print(f"{'form':<48} {'ms':>7} {'GB/s':>7} {'of copy':>8}")
    for name, rate in rates.items():
        print(f"{name:<48} {1e3 * times[name]:7.1f} {rate:7.2f} {rate / rates['copy']:8.2f}")
    figures = {
        "sign1_numba_gb_per_s": rates.get("sign1 worker step, Numba"),
        "sign1_fallback_gb_per_s": rates["sign1 worker step, without Numba"],
        "copy_gb_per_s": rates["copy"],
        "read_three_gb_per_s": rates["read three runs"],
        "sign1_numba_in_cache_gb_per_s": rates.get("sign1 worker step in the cache, Numba"),
        "sign1_fallback_in_cache_gb_per_s": rates["sign1 worker step in the cache, without Numba"],
        "sign1_numba_over_copy": None,
        "sign1_fallback_over_copy": rates["sign1 worker step, without Numba"] / rates["copy"],
    }
    if figures["sign1_numba_gb_per_s"] is not None:
        figures["sign1_numba_over_copy"] = figures["sign1_numba_gb_per_s"] / rates["copy"]
    else:
        for name in ("sign1_numba_over_copy", "sign1_numba_in_cache_gb_per_s"):
            reasons[name] = reasons["sign1_numba_gb_per_s"]
    finish("comm_codec", options.quick, figures, reasons, options.json)


if __name__ == "__main__":
    main()
