from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from plait.train.checkpoint import commit as rules
from plait.train.checkpoint.blocks import BlockHasher
from plait.train.checkpoint.commit import CommitName, Retention, SealName, Writer
from plait.train.checkpoint.reading import batches, joined
from plait.train.checkpoint.retry import Backoff, RateCap

lives = st.lists(
    st.tuples(st.lists(st.integers(1, 9), max_size=6), st.integers(0, 4), st.lists(st.integers(1, 60), max_size=4)),
    min_size=1,
    max_size=5,
)


@given(lives)
@settings(max_examples=300, deadline=None)
def test_only_the_surviving_history_counts(lives: list[tuple[list[int], int, list[int]]]) -> None:
    """Each life saves some steps and may commit more as a zombie, after the next life has sealed."""
    history: dict[int, Writer] = {}
    commits: list[CommitName] = []
    seals: list[SealName] = []
    lists: dict[SealName, list[str]] = {}
    late: list[tuple[Writer, list[int]]] = []
    for number, (gains, back, zombie_steps) in enumerate(lives):
        counting = rules.trusted(commits, seals, lists)
        assert {c.step: c.writer for c in counting} == history
        steps = sorted(history)
        base = steps[max(0, len(steps) - 1 - back)] if steps else None
        claims = [seal.writer for seal in seals]
        writer = Writer(rules.next_generation(claims, seals), f"{number:x}a")
        seal = SealName(writer, base)
        lists[seal] = rules.sealed_list(counting, base)
        seals.append(seal)
        history = {step: who for step, who in history.items() if base is not None and step <= base}
        for old, extra in late:
            assert rules.is_fenced(old, [writer])
            commits += [CommitName(old, step) for step in extra if CommitName(old, step) not in commits]
        at = base or 0
        for gain in gains:
            at += gain
            commits.append(CommitName(writer, at))
            history[at] = writer
        late.append((writer, zombie_steps))
    assert {c.step: c.writer for c in rules.trusted(commits, seals, lists)} == history


writers = st.builds(Writer, st.integers(1, 5), st.sampled_from(["a", "b"]))
names = st.lists(st.builds(CommitName, writers, st.integers(0, 50)), unique=True, max_size=12)


@given(names, st.integers(1, 4), st.one_of(st.none(), st.integers(1, 10)), st.integers(0, 2), st.randoms())
def test_retention_keeps_what_it_says(
    names: list[CommitName], last: int, every: int | None, best: int, random: Random
) -> None:
    counting = sorted(names, key=lambda c: (c.step, c.writer), reverse=True)
    metrics = {c.key: random.random() for c in counting}
    gone = rules.surplus(counting, Retention(last=last, every_steps=every, best=best), metrics)
    kept = [c for c in counting if c not in gone]
    steps = sorted({c.step for c in counting}, reverse=True)
    assert {c.step for c in kept} >= set(steps[:last])
    if every:
        firsts = {min(s for s in steps if s // every == step // every) for step in steps if step >= every}
        assert {c.step for c in kept} >= firsts
    assert len({c.step for c in kept}) == len(kept)
    assert not counting or counting[0] in kept
    keepable = {c for c in counting if all(c.writer >= o.writer for o in counting if o.step == c.step)}
    assert set(kept) <= keepable
    assert len(kept) >= min(best, len(keepable))


@given(names)
def test_names_come_back_from_keys(names: list[CommitName]) -> None:
    assert rules.commits_in([c.key for c in names]) == names
    assert rules.commits_in(["commits/x.json", "data/00000001-a-000000000001.json"]) == []
    seals = [SealName(c.writer, c.step) for c in names] + [SealName(Writer(1, "a"), None)]
    assert set(rules.seals_in([s.key for s in seals])) == set(seals)


def test_a_seal_that_cannot_be_read_limits_what_counts() -> None:
    a, b = Writer(1, "a"), Writer(2, "b")
    commits = [CommitName(a, 10), CommitName(a, 20), CommitName(a, 30), CommitName(b, 25)]
    first, second = SealName(a, None), SealName(b, 20)
    lists: dict[SealName, list[str] | None] = {first: [], second: None}
    assert [c.step for c in rules.trusted(commits, [first, second], lists)] == [25, 20, 10]


@given(st.integers(0, 3000), st.integers(1, 500), st.lists(st.integers(1, 700), max_size=20))
def test_blocks_hashed_in_any_parts_are_the_same(size: int, block: int, cuts: list[int]) -> None:
    data = bytes(range(256)) * 12
    data = data[:size]
    whole = BlockHasher(size, block)
    whole.update(data)
    parts, at = BlockHasher(size, block), 0
    for cut in cuts:
        parts.update(data[at : at + cut])
        at += cut
    parts.update(data[at:])
    table = whole.table()
    assert parts.table() == table
    table.check(data, 0, "it")


ranges = st.lists(st.tuples(st.integers(0, 40_000_000), st.integers(1, 20_000_000)), max_size=6)


@given(ranges)
def test_requests_cover_exactly_what_is_wanted(spans: list[tuple[int, int]]) -> None:
    wanted = joined([(first, first + length) for first, length in spans])
    asked = [piece for batch in batches(wanted) for piece in batch]
    assert joined(asked) == wanted
    assert sum(end - first for first, end in asked) == sum(end - first for first, end in wanted)
    assert all(end - first <= 8 * 2**20 for first, end in asked)


@given(st.lists(st.integers(1, 10_000_000), min_size=1, max_size=50), st.floats(1e5, 1e8))
def test_a_rate_cap_holds_on_average(parts: list[int], bytes_per_s: float) -> None:
    cap, now_s = RateCap(bytes_per_s), 100.0
    for part in parts:
        now_s += cap.wait_s(part, now_s)
    assert sum(parts) <= bytes_per_s * (now_s - 100.0 + 1.0) * 1.001


def test_waits_double_up_to_the_limit_and_end() -> None:
    backoff = Backoff(first_s=1.0, most_s=5.0, attempts=5)
    assert [backoff.wait_s(n, 0.999999) for n in range(1, 6)][:4] == [
        wait for wait in (backoff.wait_s(n, 0.999999) for n in range(1, 5)) if wait is not None
    ]
    assert [round(backoff.wait_s(n, 0.0) or 0, 1) for n in range(1, 5)] == [0.5, 1.0, 2.0, 2.5]
    assert backoff.wait_s(5, 0.5) is None
