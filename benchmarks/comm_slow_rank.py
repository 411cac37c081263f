"""Four ranks, one of them behind a tenth of the others' bandwidth: Plait's choice against gloo's ring.

Three hosts at 1 Gbit/s, one at 100 Mbit/s, in both directions; exact sums of 16 MB in fp32. A ring sends 1.5 times the
values over the slow link; if the slow rank adds up nothing for others, they cross it once each way, so the limit of the
ratio is 1.5.
"""

from statistics import median

from lanes import spread
from report import run
from sum_fleet import MBIT, fleet_on
from testbed import Host

SLOW = 2
SIZE_BYTES = 16_000_000
WAYS = {"auto": "Plait", "ring": "gloo's ring", "direct/fp32": "direct, equal parts"}


def measure(quick: bool) -> dict[str, float | None]:
    rates = [100 * MBIT if rank == SLOW else 1000 * MBIT for rank in range(4)]
    hosts = [Host(name=f"h{rank}", up=rate, down=rate) for rank, rate in enumerate(rates)]
    with fleet_on(hosts, [host.name for host in hosts]) as fleet:
        goodput = median(fleet.goodput_bytes_per_s(SLOW, 0) for _ in range(3))
        tuned = fleet.ask(do="tune", codecs=[])[0]
        uplinks = ", ".join(f"{rate * 8 / 1e6:.0f}" for rate in tuned["uplinks"])
        print(f"the probe took {tuned['took_s']:.1f} s and found uplinks of {uplinks} Mbit/s")
        chosen = fleet.ask(do="predict", bytes=SIZE_BYTES)[0]
        print(f"Plait chose {chosen['choice']}: {chosen['reason']}")
        found = fleet.in_turn(list(WAYS), SIZE_BYTES, 3 if quick else 7)
    limit_s = SIZE_BYTES / goodput
    print(f"values once each way over the slow link: {limit_s:.3f} s; seconds, median [lowest .. highest]")
    for way, label in WAYS.items():
        print(f"  {label:24s} {spread(found[way][0])}")
    middle = {way: median(seconds) for way, (seconds, _) in found.items()}
    return {"ring_over_plait": middle["ring"] / middle["auto"], "of_limit": limit_s / middle["auto"]}


if __name__ == "__main__":
    raise SystemExit(run("comm_slow_rank", __doc__, lambda options: measure(options.quick)))
