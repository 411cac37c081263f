"""Data parallelism on unequal devices: Plait, a proportional split by hand and plain DDP, against the sum of speeds.

*Sleep devices* take an exact time for each sample (the forward sleeps), so the ideal is the sum of the devices'
speeds and nothing else. The proportional split is plain DDP with batches dealt by the true speeds and the loss
weighted to match: it is told what Plait must find out. Blocks of the three methods alternate in one run, the order
rotates from round to round, medians over rounds count. The steps in which Plait measures its devices come first and
are not counted; they show in ``rebalance_steps``: a device turns four times slower in mid-run, and the steps are
counted until the split's longest device time is within a tenth of the new ideal, and stays there.

``equal_plait_over_ddp``: four equal ranks with a real transformer on the CPU. ``cgroup_over_sum``: real compute under
CPU quotas of 100, 50 and 25 %; its ideal is the sum of the rates of ranks that train alone, measured in each round.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from cpu_quota import QuotaRefused, Quotas
from fleet import TORCH_MODULES, Nursery, Ports, clean_end
from lanes import (
    Block,
    Lane,
    alone_block,
    ddp_block,
    equal,
    plait_block,
    proportional,
    split_of,
    spread,
    start_ddp,
    start_plait,
)
from report import BenchmarkFailed, arguments, finish

MICRO_BATCHES = 63
"""Divisible by 7 and by 9: both splits, 4:2:1 and 4:4:1, come out whole, so that rounding favours nobody."""

GLOBAL_BATCH = 2 * MICRO_BATCHES

STEP_S = 0.3
WARM_UP_STEPS = 6
WITHIN = 1.1
Figures = dict[str, float | None]


def device_speeds(ratio: Sequence[int]) -> list[float]:
    """Returns samples/s of each device, such that the ideal step takes STEP_S."""
    return [GLOBAL_BATCH / STEP_S * part / sum(ratio) for part in ratio]


def interleave(methods: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Runs all methods in each round, starting with another one each time; returns samples/s by method."""
    names = list(methods)
    measured: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            measured[name].append(methods[name]())
    return measured


def over(rates: Sequence[float], base: float) -> list[float]:
    return [rate / base for rate in rates]


def on_sleep_devices(lanes: tuple[Lane, Lane], ratio: Sequence[int], rounds: int, steps: int) -> dict[str, list[float]]:
    """Returns samples/s of ``plait``, ``prop`` and ``ddp`` over the sum of the device speeds, round by round."""
    plait, ddp = lanes
    speeds = device_speeds(ratio)
    by_hand = proportional(GLOBAL_BATCH, speeds)
    same = equal(GLOBAL_BATCH, len(ratio))
    plait_block(plait, GLOBAL_BATCH, WARM_UP_STEPS, speeds)
    ddp_block(ddp, by_hand, 2, speeds)
    few = max(1, steps // 3)
    rates = interleave(
        {
            "plait": lambda: plait_block(plait, GLOBAL_BATCH, steps, speeds).samples_per_s,
            "prop": lambda: ddp_block(ddp, by_hand, steps, speeds).samples_per_s,
            "ddp": lambda: ddp_block(ddp, same, few, speeds).samples_per_s,
        },
        rounds,
    )
    return {name: over(values, sum(speeds)) for name, values in rates.items()}


def print_rates(title: str, limit: float | None, shares: dict[str, list[float]]) -> None:
    print(f"\n{title}: share of the sum of the device speeds, median [lowest .. highest]")
    labels = {"plait": "Plait", "prop": "proportional split by hand", "ddp": "plain DDP, equal batches"}
    for name, values in shares.items():
        note = f"   (arithmetic limit {limit:.3f})" if name == "ddp" and limit is not None else ""
        print(f"  {labels[name]:28s} {spread(values)}{note}")


def rebalance(plait: Lane, steps: int) -> tuple[float | None, list[tuple[int, tuple[int, ...], float]]]:
    """Slows device 0 of 4:2:1 four times; returns the steps until the split fits again, and what each step took."""
    before, after = device_speeds([4, 2, 1]), device_speeds([4, 2, 1])
    after[0] /= 4
    plait_block(plait, GLOBAL_BATCH, WARM_UP_STEPS, before)
    ideal_s = GLOBAL_BATCH / sum(after)
    splits = split_of(plait_block(plait, GLOBAL_BATCH, steps, after))
    history = []
    for step, split in splits.items():
        longest_s = max(samples / speed for samples, speed in zip(split, after, strict=True))
        history.append((step, split, longest_s / ideal_s))
    good = [ratio <= WITHIN for _, _, ratio in history]
    settled = next((index for index in range(len(good)) if all(good[index:])), None)
    return (None if settled is None else float(settled)), history


def with_quotas(lanes: tuple[Lane, Lane], quotas: Quotas, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Returns samples/s over the sum of rates alone, under CPU quotas of 100, 50 and 25 % of a core."""
    plait, ddp = lanes
    for index, cores in enumerate((1.0, 0.5, 0.25)):
        quotas.limit(index, cores, [lane.workers[index].pid for lane in lanes])
    free: list[float | None] = [None, None, None]
    rates = alone_block(ddp, proportional(GLOBAL_BATCH, (4, 2, 1)), seconds, free)
    plait_block(plait, GLOBAL_BATCH, 6, free)
    shares: dict[str, list[float]] = {"plait": [], "prop": [], "ddp": []}
    for turn in range(rounds):
        rates = alone_block(ddp, proportional(GLOBAL_BATCH, rates), seconds, free)
        ideal = sum(rates)
        by_hand, same = proportional(GLOBAL_BATCH, rates), equal(GLOBAL_BATCH, 3)
        steps = max(3, round(seconds * ideal / GLOBAL_BATCH))

        def plait_rate(steps: int = steps) -> float:
            return plait_block(plait, GLOBAL_BATCH, steps, free).samples_per_s

        def prop_rate(steps: int = steps, by_hand: list[int] = by_hand) -> float:
            return ddp_block(ddp, by_hand, steps, free).samples_per_s

        def ddp_rate(steps: int = steps, same: list[int] = same) -> float:
            return ddp_block(ddp, same, max(2, steps // 2), free).samples_per_s

        methods = [("plait", plait_rate), ("prop", prop_rate), ("ddp", ddp_rate)]
        for name, rate in methods[turn % 3 :] + methods[: turn % 3]:
            shares[name].append(rate() / ideal)
    return shares


def equal_devices(
    nursery: Nursery, directory: Path, ports: Ports, rounds: int, steps: int
) -> list[tuple[float, float]]:
    """Returns (Plait, DDP) samples/s of four equal ranks with a real model, round by round."""
    batch = 32
    environment = {"BENCH_MODEL": "tokens"}
    ddp = start_ddp(nursery, directory, ports, 4, environment | {"BENCH_BATCH": str(batch // 4)})
    plait = start_plait(
        nursery, directory, ports, 4, environment | {"BENCH_BATCH": str(batch), "BENCH_MICRO": str(batch)}
    )
    ddp.wait_until_ready()
    plait.wait_until_ready()
    free: list[float | None] = [None] * 4

    def plait_run(count: int = steps) -> Block:
        return plait_block(plait, batch, count, free)

    def ddp_run(count: int = steps) -> Block:
        return ddp_block(ddp, equal(batch, 4), count, free)

    plait_run(5)
    ddp_run(3)
    rates = interleave({"plait": lambda: plait_run().samples_per_s, "ddp": lambda: ddp_run().samples_per_s}, rounds)
    nursery.end(plait.workers + ddp.workers)
    return list(zip(rates["plait"], rates["ddp"], strict=True))


class Scene:
    """Three ranks of DDP for the whole run, and a new Plait session for each scenario."""

    def __init__(self, nursery: Nursery, directory: Path, quick: bool) -> None:
        self.nursery = nursery
        self.directory = directory
        self.quick = quick
        self.ports = Ports()
        environment = {"BENCH_MODEL": "images", "BENCH_BATCH": str(GLOBAL_BATCH), "BENCH_MICRO": str(MICRO_BATCHES)}
        self._environment = environment
        self.ddp = start_ddp(nursery, directory, self.ports, 3, environment | {"BENCH_BATCH": str(GLOBAL_BATCH // 3)})

    @contextmanager
    def lanes(self) -> Iterator[tuple[Lane, Lane]]:
        plait = start_plait(self.nursery, self.directory, self.ports, 3, self._environment)
        plait.wait_until_ready()
        self.ddp.wait_until_ready()
        try:
            yield plait, self.ddp
        finally:
            self.nursery.end(plait.workers)

    def main_figures(self) -> Figures:
        """4:2:1, and then one of its devices slows down."""
        with self.lanes() as lanes:
            rounds, steps = (3, 4) if self.quick else (7, 10)
            shares = on_sleep_devices(lanes, [4, 2, 1], rounds, steps)
            print_rates("sleep devices 4:2:1", 3 / 7, shares)
            steps_needed, history = rebalance(lanes[0], 12 if self.quick else 20)
        print("\na device of 4:2:1 turns four times slower: samples by device, longest device time over the new ideal")
        for step, split, ratio in history:
            print(f"  step {step:4d}  {split!s:16s} {ratio:.3f}")
        return {
            "plait_over_sum": median(shares["plait"]),
            "prop_over_sum": median(shares["prop"]),
            "ddp_over_sum": median(shares["ddp"]),
            "plait_over_ddp": median(p / d for p, d in zip(shares["plait"], shares["ddp"], strict=True)),
            "plait_over_prop": median(p / d for p, d in zip(shares["plait"], shares["prop"], strict=True)),
            "rebalance_steps": steps_needed,
        }

    def straggler_figures(self) -> Figures:
        with self.lanes() as lanes:
            shares = on_sleep_devices(lanes, [4, 4, 1], *((2, 4) if self.quick else (5, 10)))
        print_rates("sleep devices 4:4:1", 3 / 9, shares)
        return {
            "straggler_over_sum": median(shares["plait"]),
            "straggler_prop_over_sum": median(shares["prop"]),
            "straggler_ddp_over_sum": median(shares["ddp"]),
        }

    def quota_share(self) -> tuple[float | None, str]:
        """Returns the median under CPU quotas, or why there is none."""
        try:
            with self.lanes() as lanes, Quotas() as quotas:
                shares = with_quotas(lanes, quotas, *((2, 0.8) if self.quick else (7, 3.0)))
        except QuotaRefused as refusal:
            return None, str(refusal)
        print_rates("CPU quotas 100, 50, 25 % of a core, real compute", None, shares)
        return median(shares["plait"]), ""

    def equal_share(self) -> float:
        self.nursery.end(self.ddp.workers)
        rounds, steps = (3, 4) if self.quick else (10, 8)
        pairs = equal_devices(self.nursery, self.directory, self.ports, rounds, steps)
        ratios = [p / d for p, d in pairs]
        print("\nfour equal ranks, transformer of 1.7 million parameters, real compute")
        print(f"  Plait samples/s              {spread([p for p, _ in pairs])}")
        print(f"  plain DDP samples/s          {spread([d for _, d in pairs])}")
        print(f"  Plait over DDP, by round     {spread(ratios)}")
        return median(ratios)


def measure(quick: bool) -> tuple[Figures, dict[str, str]]:
    reasons: dict[str, str] = {}
    with clean_end() as directory, Nursery([*TORCH_MODULES, "plait.train.session"]) as nursery:
        scene = Scene(nursery, directory, quick)
        figures = scene.main_figures()
        if figures["rebalance_steps"] is None:
            reasons["rebalance_steps"] = "the split did not come within a tenth of the new ideal"
        figures |= scene.straggler_figures()
        figures["cgroup_over_sum"], why = scene.quota_share()
        if why:
            reasons["cgroup_over_sum"] = why
        figures["equal_plait_over_ddp"] = scene.equal_share()
    return figures, reasons


def main() -> int:
    options = arguments(__doc__.splitlines()[0]).parse_args()
    try:
        figures, reasons = measure(options.quick)
    except BenchmarkFailed as failure:
        print(f"failed: {failure}", file=sys.stderr)
        return 1
    finish("unequal_dp", options.quick, figures, reasons, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
