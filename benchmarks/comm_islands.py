"""Two islands of two ranks with a slow link between: Plait's all-reduce against gloo's ring and the link's own limit.

Two hosts with two ranks each; a host's link is shaped to 100 Mbit/s in both directions, ranks of one host meet over
loopback. Exact sums of fp32: gloo's ring in a good order (each host's ranks side by side), the same ring in a bad one,
and what Plait chooses after its probe. One bit a value: between the islands alone. What a host sends is read off its
link's own counter. The limit is what must cross in each direction, over what one plain connection carries.
"""

from statistics import median

from lanes import spread
from report import run
from sum_fleet import MBIT, fleet_on
from testbed import Host

RATE = 100 * MBIT
WAYS = {
    "auto": "Plait, exact",
    "islands/sign1": "Plait, one bit between islands",
    "ring": "gloo's ring, good order",
    "bad ring": "gloo's ring, bad order",
}


def measure(quick: bool) -> dict[str, float | None]:
    hosts = [Host(name=name, up=RATE, down=RATE) for name in ("h0", "h1")]
    figures: dict[str, list[float]] = {}
    with fleet_on(hosts, ["h0", "h0", "h1", "h1"], bad_order=[0, 2, 1, 3]) as fleet:
        goodput = median(fleet.goodput_bytes_per_s(0, 2) for _ in range(3))
        tuned = fleet.ask(do="tune", codecs=[])[0]
        print(f"one connection carries {goodput * 8 / 1e6:.1f} Mbit/s; the probe took {tuned['took_s']:.1f} s")
        for size_bytes in (8_000_000,) if quick else (8_000_000, 32_000_000):
            chosen = fleet.ask(do="predict", bytes=size_bytes)[0]
            print(f"\n{size_bytes / 1e6:g} MB; Plait chose {chosen['choice']}: {chosen['reason']}")
            limit_s = size_bytes / goodput
            rounds = 3 if quick else 5
            found = fleet.in_turn(list(WAYS), size_bytes, rounds)
            print(f"  the limit is {limit_s:.3f} s; seconds, median [lowest .. highest]; sent by a host, over the size")
            for way, label in WAYS.items():
                seconds, sent_bytes = found[way]
                print(f"  {label:32s} {spread(seconds)}   {sent_bytes / size_bytes:6.3f}")
            middle = {way: median(seconds) for way, (seconds, _) in found.items()}
            each = {
                "of_limit": limit_s / middle["auto"],
                "ring_good_over_plait": middle["ring"] / middle["auto"],
                "ring_bad_over_plait": middle["bad ring"] / middle["auto"],
                "uplink_bytes_over_s": found["auto"][1] / size_bytes,
                "uplink_bytes_over_s_1bit": found["islands/sign1"][1] / size_bytes,
            }
            for name, value in each.items():
                figures.setdefault(name, []).append(value)
    worst = {"uplink_bytes_over_s": max, "uplink_bytes_over_s_1bit": max}
    return {name: worst.get(name, min)(values) for name, values in figures.items()}


if __name__ == "__main__":
    raise SystemExit(run("comm_islands", __doc__, lambda options: measure(options.quick)))
