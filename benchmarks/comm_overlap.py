"""How much of the exchange hides behind backward: 1-bit Adam in DDP's hook, overlapped, blocking and left out.

Four ranks behind shaped links run a transformer of 14.7 million parameters in buckets of 8 MB; behind each of its four
layers backward sleeps for 60 ms, as a processor is free while an accelerator computes. The blocking form sends the same
bytes, but backward waits for each bucket. ``early`` is overlapped, and updates parameters as soon as their momenta have
come. ``compute`` exchanges nothing, and updates as the others do. Blocks of the forms take turns; medians over the
rounds count. ``exposed`` is a step's time beyond ``compute``. Real layers, without a pause, come beside, where overlap
has no processor of its own.
"""

from statistics import median

from comm_flat import MBIT, WORLD, Lane
from fleet import clean_end
from lanes import spread
from report import run
from testbed import Host, Testbed

RATES = {"500m": 500 * MBIT, "1g": 1000 * MBIT, "100m": 100 * MBIT}
PAUSE_S = 0.06
FORMS = ("compute", "blocking", "overlapped", "early")
BUSY_LOW, BUSY_HIGH = 0.3, 0.6
"""Shares of a blocking step that is spent in communication, between which the speed-up is asked for."""
NOT_BUSY = f"at no rate communication was {BUSY_LOW:.0%} to {BUSY_HIGH:.0%} of a blocking step"


def forms_s(lane: Lane, rounds: int, steps: int, pause_s: float) -> dict[str, float]:
    """Returns the median seconds a step of each form, and prints them."""
    seconds: dict[str, list[float]] = {form: [] for form in FORMS}
    for turn in range(rounds + 1):
        for place in range(len(FORMS)):
            form = FORMS[(turn + place) % len(FORMS)]
            taken_s, _ = lane.step_s(steps, form=form, pause_s=str(pause_s))
            if turn:  # the first round warms up
                seconds[form].append(taken_s)
    for form in FORMS:
        print(f"    {form:12s} {spread(seconds[form])}")
    return {form: median(values) for form, values in seconds.items()}


def measure(quick: bool) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    speedups = []
    rounds, steps = (3, 3) if quick else (9, 5)
    with clean_end() as directory, Testbed([Host(name=f"h{rank}") for rank in range(WORLD)]) as bed:
        for limitation in bed.limitations:
            print(limitation)
        lane = Lane(bed, directory, "overlap", 0, "comm_pause.py")
        lane.wait_until_ready()
        lane.step_s(4, form="overlapped", pause_s="0")  # beyond the optimizer's warm-up
        for rate, bytes_per_s in RATES.items():
            for rank in range(WORLD):
                bed.reshape(f"h{rank}", bytes_per_s, bytes_per_s)
            for pause_s in (PAUSE_S, 0.0):
                print(f"{rate}, pauses of {pause_s:g} s: seconds a step, median [lowest .. highest]", flush=True)
                found = forms_s(lane, rounds, steps, pause_s)
                blocking_s = found["blocking"] - found["compute"]
                exposed = (found["overlapped"] - found["compute"]) / blocking_s
                speedup = found["blocking"] / found["overlapped"]
                share = blocking_s / found["blocking"]
                print(f"    exchange {share:.0%} of a blocking step, exposed {exposed:.2f}, speed-up {speedup:.2f}")
                early = (found["early"] - found["compute"]) / blocking_s
                print(f"    updated early: exposed {early:.2f}, speed-up {found['blocking'] / found['early']:.2f}")
                if pause_s:
                    figures[f"exposed_over_blocking_{rate}"] = exposed
                    figures[f"early_exposed_over_blocking_{rate}"] = early
                    figures[f"speedup_by_early_{rate}"] = found["blocking"] / found["early"]
                    figures[f"speedup_by_overlap_{rate}"] = speedup
                    if BUSY_LOW <= share <= BUSY_HIGH:
                        speedups.append(speedup)
    figures["exposed_over_blocking"] = figures["exposed_over_blocking_500m"]
    figures["speedup_by_overlap"] = min(speedups) if speedups else None
    return figures


if __name__ == "__main__":
    reasons = {"speedup_by_overlap": NOT_BUSY}
    raise SystemExit(run("comm_overlap", __doc__, lambda options: measure(options.quick), reasons))
