"""Does the planner know? Every way to sum, predicted from the probe and then measured, on several networks.

On each network Plait probes once, predicts every candidate at every size, and chooses; then all candidates run in turn,
and medians count. What takes less than 150 ms is done several times on end. A cell is a candidate at a size on a
network. ``within_25_percent_share``: cells whose measured time lies within 25 % of what was predicted.
``chosen_over_best_max``: the most that a chosen plan took over the best of its row. ``plain_over_chosen_unshaped``:
PyTorch's own all-reduce over the chosen plan, the least over sizes, where no link is slow. Networks: four hosts behind
100 Mbit/s and 1 Gbit/s, one of them at a tenth, unshaped; two hosts of two ranks with 100 Mbit/s between.
"""

from dataclasses import dataclass, field
from statistics import median

from report import run
from sum_fleet import MBIT, SumFleet, fleet_on
from testbed import Host

CODECS = ["bf16", "sign1"]
SIZES = (16_384, 262_144, 2_097_152, 16_777_216)
QUICK_SIZES = (16_384, 2_097_152)
SLOW_RANK = [1000 * MBIT, 1000 * MBIT, 100 * MBIT, 1000 * MBIT]
FLAT: dict[str, list[float] | list[None]] = {
    "flat, 100 Mbit/s": [100 * MBIT] * 4,
    "flat, 1 Gbit/s": [1000 * MBIT] * 4,
    "one rank at a tenth": SLOW_RANK,
    "unshaped": [None] * 4,
}
QUICK = ("flat, 100 Mbit/s", "unshaped")


@dataclass
class Cells:
    """What was found over all networks."""

    right: list[bool] = field(default_factory=list)
    chosen_over_best: list[float] = field(default_factory=list)
    plain_over_chosen: list[float] = field(default_factory=list)

    def network(self, fleet: SumFleet, name: str, sizes: tuple[int, ...], rounds: int) -> None:
        tuned = fleet.ask(do="tune", codecs=CODECS)[0]
        print(f"\n{name}: the probe took {tuned['took_s']:.1f} s; predicted / measured ms")
        for size_bytes in sizes:
            told = fleet.ask(do="predict", bytes=size_bytes)[0]
            found = fleet.in_turn(tuned["ways"], size_bytes, rounds, stretch_s=0.15)
            measured = {way: median(seconds) for way, (seconds, _) in found.items()}
            best = min(measured, key=lambda way: measured[way])
            chosen = told["choice"]
            print(f"  {size_bytes} bytes: chose {chosen}; best {best}; {told['reason']}")
            for way, seconds in measured.items():
                predicted_s = told["predicted"][way]
                is_right = abs(seconds / predicted_s - 1.0) <= 0.25
                self.right.append(is_right)
                mark = "" if is_right else "  more than 25 % off"
                print(f"    {way:16s} {predicted_s * 1e3:9.2f} {seconds * 1e3:9.2f}{mark}")
            self.chosen_over_best.append(measured[chosen] / measured[best])
            if name == "unshaped":
                self.plain_over_chosen.append(measured["plain"] / measured[chosen])


def measure(quick: bool) -> dict[str, float | None]:
    cells = Cells()
    sizes, rounds = (QUICK_SIZES, 3) if quick else (SIZES, 5)
    hosts = [Host(name=f"h{rank}", up=100 * MBIT, down=100 * MBIT) for rank in range(4)]
    with fleet_on(hosts, [host.name for host in hosts]) as fleet:
        for name, rates in FLAT.items():
            if quick and name not in QUICK:
                continue
            for host, rate in zip(hosts, rates, strict=True):
                fleet.bed.reshape(host.name, rate, rate)
            cells.network(fleet, name, sizes, rounds)
    if not quick:
        pair = [Host(name=name, up=100 * MBIT, down=100 * MBIT) for name in ("h0", "h1")]
        with fleet_on(pair, ["h0", "h0", "h1", "h1"]) as fleet:
            cells.network(fleet, "two islands of two, 100 Mbit/s between", sizes, rounds)
    return {
        "within_25_percent_share": sum(cells.right) / len(cells.right),
        "chosen_over_best_max": max(cells.chosen_over_best),
        "plain_over_chosen_unshaped": min(cells.plain_over_chosen),
    }


if __name__ == "__main__":
    raise SystemExit(run("comm_planner", __doc__, lambda options: measure(options.quick)))
