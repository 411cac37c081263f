"""Choices of the planner on networks that are written down, not measured."""

import json
from dataclasses import replace

import pytest
import torch

from plait.train.collectives.plan import direct, islands, ring
from plait.train.comm.planner import (
    CROWDED,
    PLAIN,
    SIZES,
    WINDOWS,
    Candidate,
    Network,
    Table,
    candidates,
    physical_s,
    plan_of,
    row_of,
    topology_hash,
)
from plait.train.comm.probe import settled_s, shared_rate, tournament
from plait.train.comm.tuning import WINDOW_EXCHANGES, Tuning, document, read

FAST = 1e9
RATIOS = {"fp32": 1.0, "bf16": 0.5, "sign1": 1 / 31}
GAMMA = {"bf16": 2e-10, "sign1": 5e-10}
MB = 2**20


def network(island_of: tuple[int, ...], uplinks: tuple[float, ...], latency_s: float = 1e-4) -> Network:
    """Islands that are fast inside; between two of them the slower uplink counts."""
    number = len(uplinks)
    has_inside = [island_of.count(i) > 1 for i in range(number)]
    rates = tuple(
        tuple(
            (FAST if has_inside[i] else float("inf")) if i == j else min(uplinks[i], uplinks[j]) for j in range(number)
        )
        for i in range(number)
    )
    latencies = tuple(tuple(latency_s / 10 if i == j else latency_s for j in range(number)) for i in range(number))
    return Network(
        island_of=island_of,
        latency_s=latencies,
        bytes_per_s=rates,
        uplink_bytes_per_s=uplinks,
        codec_s_per_byte=GAMMA,
    )


FLAT = network((0, 1, 2, 3), (12e6,) * 4)
PAIRS = network((0, 0, 1, 1), (12e6, 12e6))
DEALT = network((0, 1, 0, 1), (12e6, 12e6))
SLOW = network((0, 1, 2, 3), (120e6, 120e6, 12e6, 120e6))


def table_of(net: Network, codecs: tuple[str, ...] = ()) -> Table:
    return Table(net, candidates(net, codecs), RATIOS)


def test_times_follow_from_the_busiest_link() -> None:
    size = 4 * 2**20
    count = size // 4
    flat = size / 12e6
    assert physical_s(ring((0, 1, 2, 3), count), FLAT, 1.0, 0.0) == pytest.approx(1.5 * flat, rel=0.01)
    assert physical_s(direct(4, count), FLAT, 1.0, 0.0) == pytest.approx(CROWDED * 1.5 * flat, rel=0.01)
    assert physical_s(ring((0, 1, 2, 3), count), PAIRS, 1.0, 0.0) == pytest.approx(1.5 * flat, rel=0.01)
    assert physical_s(ring((0, 1, 2, 3), count), DEALT, 1.0, 0.0) == pytest.approx(CROWDED * 3.0 * flat, rel=0.01)
    assert physical_s(islands((0, 0, 1, 1), count), PAIRS, 1.0, 0.0) == pytest.approx(CROWDED * flat, rel=0.01)
    leaders = plan_of(Candidate("leaders"), PAIRS, count, 4)
    assert physical_s(leaders, PAIRS, 1.0, 0.0) == pytest.approx(flat, rel=0.01)
    assert physical_s(islands((0, 0, 1, 1), count), PAIRS, 1 / 31, 0.0) == pytest.approx(flat / 31, rel=0.2)
    weighted = plan_of(Candidate("weighted"), SLOW, count, 4)
    assert physical_s(weighted, SLOW, 1.0, 0.0) == pytest.approx(CROWDED * flat, rel=0.01)


@pytest.mark.parametrize(("net", "shape"), [(PAIRS, "leaders"), (DEALT, "leaders"), (SLOW, "weighted")])
def test_large_sums_take_the_way_that_spares_the_slow_link(net: Network, shape: str) -> None:
    choice = table_of(net).choice(16 * MB)
    assert choice.candidate == Candidate(shape)
    assert "times as long" in choice.reason
    assert [seconds for _, seconds in choice.rivals] == sorted(seconds for _, seconds in choice.rivals)
    assert choice.predicted_s <= choice.rivals[0][1]


def test_a_codec_is_taken_only_where_it_is_allowed_and_its_link_slow() -> None:
    assert table_of(FLAT).choice(16 * MB).candidate.codec == "fp32"
    assert table_of(FLAT, ("bf16", "sign1")).choice(16 * MB).candidate == Candidate("direct", "sign1")
    fast = replace(FLAT, bytes_per_s=((10 * FAST,) * 4,) * 4, uplink_bytes_per_s=(10 * FAST,) * 4)
    assert table_of(fast, ("bf16", "sign1")).choice(16 * MB).candidate.codec == "fp32"


def test_nothing_is_done_on_a_fast_alike_network() -> None:
    """By the formula all exact ways are alike there; trials say what the machine makes of them."""
    fast = network((0, 1, 2, 3), (FAST,) * 4, latency_s=1e-5)
    table = table_of(fast, ("bf16",))
    for candidate in table.candidates:
        slower = 1.0 if candidate.shape == PLAIN else 1.3
        table.measured_s[candidate] = [(s, slower * 3e-4 + slower * s / 4e8) for s in (2**14, 2**17, 2**20, 2**22)]
    table.fix()
    assert {table.choice(size).candidate for size in SIZES} == {Candidate(PLAIN)}
    assert "nothing else is clearly faster" in table.choice(MB).reason


def test_one_disturbed_trial_does_not_spoil_what_is_larger() -> None:
    """Where trials end at 1 MB, a stall of 50 ms in the best candidate's last one must not count 16 times."""
    table = table_of(SLOW)
    for candidate in table.candidates:
        stall_s = 0.05 if candidate.shape == "weighted" else 0.0
        times = [(s, table.formula_s(candidate, s) + 0.002) for s in (2**14, 2**17)]
        table.measured_s[candidate] = [*times, (MB, table.formula_s(candidate, MB) + 0.002 + stall_s)]
    table.fix()
    assert table.choice(16 * MB).candidate == Candidate("weighted")
    assert table.predicted_s(Candidate("weighted"), 16 * MB) == pytest.approx(16 * MB / 12e6, rel=0.1)


def test_a_gain_too_small_to_be_sure_of_is_left() -> None:
    fast = network((0, 1, 2, 3), (FAST,) * 4, latency_s=1e-5)
    for part, chosen in ((0.97, PLAIN), (0.9, "direct")):
        table = table_of(fast)
        for candidate in table.candidates:
            faster = part if candidate.shape == "direct" else 1.0
            table.measured_s[candidate] = [(s, faster * (1e-3 + s / 1e8)) for s in (2**14, 2**20)]
        table.fix()
        assert table.choice(2**18).candidate.shape == chosen


def test_trials_are_met_and_carried_on() -> None:
    table = table_of(FLAT)
    direct_ = Candidate("direct")
    extra = 0.005
    table.measured_s[direct_] = [(s, table.formula_s(direct_, s) + extra + s * 1e-9) for s in (2**14, 2**17, 2**20)]
    for size, seconds in table.measured_s[direct_]:
        assert table.predicted_s(direct_, size) == pytest.approx(seconds)
    large = 64 * MB
    expected = table.formula_s(direct_, large) + extra + large * 1e-9
    assert table.predicted_s(direct_, large) == pytest.approx(expected, rel=1e-6)
    assert table.predicted_s(direct_, 4096) == pytest.approx(table.measured_s[direct_][0][1])


def observed_table() -> tuple[Table, int, Candidate]:
    table = table_of(PAIRS)
    table.fix()
    row = row_of(4 * MB)
    return table, row, table.in_use[row]


def test_a_rival_takes_over_only_after_several_windows() -> None:
    table, row, used = observed_table()
    size = SIZES[row]
    told = []
    for _ in range(WINDOWS):
        for _ in range(20):
            table.observe(used, size, 9.0 * table.formula_s(used, size))
        told.append(table.decide())
    assert told[:-1] == [{}] * (WINDOWS - 1)
    assert list(told[-1]) == [row]
    assert told[-1][row] != used


def test_a_little_or_passing_slowness_changes_nothing() -> None:
    table, row, used = observed_table()
    size = SIZES[row]
    assert table.choice(size).rivals[0][1] > table.choice(size).predicted_s
    for turn in range(4 * WINDOWS):
        slow = 9.0 if turn % WINDOWS == 0 else 1.0
        for _ in range(20):
            table.observe(used, size, slow * table.formula_s(used, size))
        assert table.decide() == {}


class Told:
    """Future results of sums over two members, of which rank 0 speaks first."""

    def __init__(self) -> None:
        self.words: list[torch.Tensor] = []
        self.at = {0: 0, 1: 0}

    def of(self, rank: int, word: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        if rank == 0:
            self.words.append(word.clone())
        else:
            assert not word.any(), "only rank 0 decides"
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(self.words[self.at[rank]])
        self.at[rank] += 1
        return future


def test_all_members_switch_at_the_same_exchange() -> None:
    """Rank 1 measures the contrary of what rank 0 does, and follows it all the same."""
    told = Told()
    tables = [observed_table()[0] for _ in range(2)]
    size = 4 * MB
    used = tables[0].in_use[row_of(size)]
    tunings = [Tuning(t, n, lambda word, n=n: told.of(n, word)) for n, t in enumerate(tables)]  # type: ignore[misc]
    history: list[list[Candidate]] = [[], []]
    for _ in range(WINDOW_EXCHANGES * (WINDOWS + 3)):
        for rank, tuning in enumerate(tunings):
            choice = tuning.choice(size)
            history[rank].append(choice.candidate)
            slow = 9.0 if (rank == 0) == (choice.candidate == used) else 1.0
            tuning.observe(choice.candidate, size, slow * tuning.table.formula_s(choice.candidate, size))
    assert history[0] == history[1]
    assert history[0][0] == used
    assert history[0][-1] != used
    assert len(tunings[0].switches) == len(tunings[1].switches) == 1


def test_a_saved_table_is_used_again_only_on_the_same_network() -> None:
    table = table_of(PAIRS, ("bf16",))
    for candidate in table.candidates:
        table.measured_s[candidate] = [(2**14, 0.001), (2**20, 0.1)]
    table.fix()
    text = json.dumps(document(table, ()))
    again = read(text, PAIRS, table.candidates)
    assert again is not None
    assert again.measured_s == table.measured_s
    assert again.in_use == table.in_use
    slower = replace(PAIRS, uplink_bytes_per_s=(12e6, 6e6))
    assert read(text, slower, table.candidates) is None
    assert read(text, DEALT, table.candidates) is None
    assert read(text[:-20], PAIRS, table.candidates) is None
    assert read(text, PAIRS, table_of(PAIRS).candidates) is None
    assert topology_hash(["a", "b"], ()) != topology_hash(["a", "c"], ())


@pytest.mark.parametrize("number", range(1, 9))
def test_in_a_tournament_all_meet_once(number: int) -> None:
    rounds = list(tournament(number))
    met = [pair for round_ in rounds for pair in round_]
    assert sorted(met) == [(a, b) for a in range(number) for b in range(a + 1, number)]
    assert all(len({m for pair in round_ for m in pair}) == 2 * len(round_) for round_ in rounds)


def test_latency_is_that_of_the_links_on_the_longest_way() -> None:
    count = 4 * 2**20
    inside_s, across_s = 1e-5, 1e-4
    times_s = {plan: physical_s(plan, PAIRS, 1.0, 0.0) for plan in (islands((0, 0, 1, 1), count), direct(4, count))}
    ways_s = {
        "islands": 2 * (inside_s + across_s),
        "direct": 2 * across_s,
    }
    for plan, seconds in times_s.items():
        no_latency = replace(PAIRS, latency_s=((0.0, 0.0), (0.0, 0.0)))
        assert seconds - physical_s(plan, no_latency, 1.0, 0.0) == pytest.approx(ways_s[plan.shape], rel=1e-6)


def test_a_stream_counts_after_its_burst_with_as_much_under_way_at_both_ends() -> None:
    burst = [0.001 * number for number in range(10)]
    steady = [0.009 + 0.02 * number for number in range(1, 21)]
    drain = [steady[-1] + 1e-6 * number for number in range(1, 4)]
    assert settled_s([*burst, *steady, *drain]) == pytest.approx(0.02, rel=0.01)


def test_two_trials_of_large_messages_tell_what_larger_ones_take() -> None:
    table = table_of(FLAT)
    plain = Candidate(PLAIN)
    table.measured_s[plain] = [(MB // 64, 0.001), (MB, 0.010), (4 * MB, 0.022)]
    assert table.formula_s(plain, 16 * MB) > 1.0  # far from what was measured
    assert table.predicted_s(plain, 16 * MB) == pytest.approx(0.070, rel=0.01)
    small = table_of(FLAT)
    small.measured_s[plain] = [(MB // 64, 0.010), (MB // 8, 0.011)]
    assert small.predicted_s(plain, 16 * MB) == pytest.approx(small.formula_s(plain, 16 * MB), rel=0.02)


def test_of_streams_that_share_a_link_only_the_time_together_counts() -> None:
    fast = [0.01 * number for number in range(1, 61)]
    slow = [0.02 * number for number in range(1, 31)] + [0.6 + 0.005 * number for number in range(1, 31)]
    together = shared_rate(fast, fast[-1]) + shared_rate(slow, fast[-1])
    assert together == pytest.approx(150.0, rel=0.05)
