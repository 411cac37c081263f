"""Which checkpoints count, who may write, and what may be deleted: decisions only, over the names of objects.

A run that begins to write takes a **claim** of the next generation and then **seals** it with the list of commits that
it goes on from. Readers trust the commits of the highest seal and those on its list; nothing else. So whatever a
writer of an older generation still commits, nobody will ever load. A writer looks at the claims before and after each
commit and before it deletes anything, and stops once there is a higher one than its own.

The order matters: claim, then list, then seal. A former writer deletes old checkpoints only after its newest commit
*and* a look at the claims; if it saw no newer claim, that commit was there before the new writer listed, and is on the
list.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

_CLAIM = re.compile(r"claims/(\d{8})(?:-([0-9a-f]+))?\.json")
_SEAL = re.compile(r"seals/(\d{8})-([0-9a-f]+)-(\d{12,}|start)\.json")
_COMMIT = re.compile(r"commits/(\d{8})-([0-9a-f]+)-(\d{12,})\.json")
_DIRECTORY = re.compile(r"data/(\d{12,})-(\d{8})-([0-9a-f]+)-[0-9a-f]+/")


@dataclass(frozen=True, slots=True, order=True)
class Writer:
    """Who writes: its generation, and a random name that breaks ties where a store let two take the same one."""

    generation: int
    owner: str


@dataclass(frozen=True, slots=True)
class CommitName:
    """A commit by what its key tells."""

    writer: Writer
    step: int

    @property
    def key(self) -> str:
        """The commit's object."""
        return f"commits/{self.writer.generation:08d}-{self.writer.owner}-{self.step:012d}.json"


@dataclass(frozen=True, slots=True)
class SealName:
    """A seal by what its key tells; ``base_step`` is None for a run that began anew."""

    writer: Writer
    base_step: int | None

    @property
    def key(self) -> str:
        """The seal's object."""
        base = "start" if self.base_step is None else f"{self.base_step:012d}"
        return f"seals/{self.writer.generation:08d}-{self.writer.owner}-{base}.json"


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A former writer, and up to which step of what it saved a later one has gone on."""

    writer: Writer
    last_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Whose states count that are not in the store: snapshots in memory, checkpoints on a node's disk.

    Attributes:
        writer: Who writes now; whatever it has saved counts.
        before: Who wrote before, latest first. Each has its own last step: what a writer saved beyond the step that
            its successor went on from is of another past, however far that successor came.
    """

    writer: Writer
    before: tuple[Ancestor, ...] = ()

    def counts(self, writer: Writer, step: int) -> bool:
        """Returns whether what a writer has saved of a step is of the past that the run goes on from."""
        return writer == self.writer or any(step <= one.last_step for one in self.before if one.writer == writer)

    def counts_by_generation(self, generation: int, step: int) -> bool:
        """The same of what tells only the generation of its writer."""
        limits = [one.last_step for one in self.before if one.writer.generation == generation]
        return generation == self.writer.generation or (bool(limits) and step <= min(limits))

    def heirs(self, base_step: int | None) -> tuple[Ancestor, ...]:
        """Returns who wrote before the next writer, which goes on from ``base_step``, None if it begins anew."""
        if base_step is None:
            return ()
        former = (Ancestor(one.writer, min(one.last_step, base_step)) for one in self.before)
        return (Ancestor(self.writer, base_step), *former)[:_MOST_BEFORE]


_MOST_BEFORE = 16
"""Writers in a row that may all end before they have saved anything, without what they began with being forgotten."""


def claim_key(writer: Writer, *, exclusive: bool) -> str:
    """Returns the key of a claim; where the store creates exclusively, a generation has only one."""
    return (
        f"claims/{writer.generation:08d}.json" if exclusive else f"claims/{writer.generation:08d}-{writer.owner}.json"
    )


def claims_in(keys: Iterable[str]) -> list[Writer]:
    """Returns the claims among keys; one that was taken exclusively has no owner in its name."""
    return [Writer(int(m[1]), m[2] or "") for key in keys if (m := _CLAIM.fullmatch(key))]


def seals_in(keys: Iterable[str]) -> list[SealName]:
    """Returns the seals among keys, lowest first."""
    found = (m for key in keys if (m := _SEAL.fullmatch(key)))
    names = [SealName(Writer(int(m[1]), m[2]), None if m[3] == "start" else int(m[3])) for m in found]
    return sorted(names, key=lambda seal: seal.writer)


def commits_in(keys: Iterable[str]) -> list[CommitName]:
    """Returns the commits among keys."""
    return [CommitName(Writer(int(m[1]), m[2]), int(m[3])) for key in keys if (m := _COMMIT.fullmatch(key))]


def is_fenced(mine: Writer, claims: Iterable[Writer]) -> bool:
    """Returns whether another writer has claimed after this one."""
    return any(
        claim.generation > mine.generation or (claim.generation == mine.generation and claim.owner > mine.owner)
        for claim in claims
    )


def next_generation(claims: Iterable[Writer], seals: Iterable[SealName]) -> int:
    """Returns the generation to claim."""
    return max([0, *(claim.generation for claim in claims), *(seal.writer.generation for seal in seals)]) + 1


def trusted(
    commits: Iterable[CommitName], seals: Iterable[SealName], lists: Mapping[SealName, Collection[str] | None]
) -> list[CommitName]:
    """Returns the commits that count, best first: by step, then by generation.

    Args:
        commits: All there are.
        seals: All there are.
        lists: What each seal lists. None where it cannot be read: then its writer's own commits count, and those that
            the seal before it makes count up to the step that the damaged seal's name tells.
    """
    everything = list(commits)
    kept: set[CommitName] = set()
    limit: float = float("inf")
    for seal in sorted(seals, key=lambda seal: seal.writer, reverse=True):
        kept |= {c for c in everything if c.writer == seal.writer and c.step <= limit}
        listed = lists.get(seal)
        if listed is not None:
            kept |= {c for c in everything if c.key in set(listed) and c.step <= limit}
            break
        if seal.base_step is None:
            break
        limit = min(limit, seal.base_step)
    return sorted(kept, key=lambda c: (c.step, c.writer), reverse=True)


def sealed_list(counting: Iterable[CommitName], base_step: int | None) -> list[str]:
    """Returns what a new seal lists: the commits that count so far, up to the step that the run goes on from."""
    return [commit.key for commit in counting if base_step is not None and commit.step <= base_step]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which checkpoints are kept: the last ``last``, the ``best`` by their metric, and one each ``every_steps``.

    That one is the first at or after each multiple: saves come by the clock, and hardly ever at a round step.
    """

    last: int = 3
    every_steps: int | None = None
    best: int = 0

    def __post_init__(self) -> None:
        """Refuses to keep nothing."""
        if self.last < 1:
            raise ValueError(f"checkpoint.keep is {self.last}; at least 1 checkpoint must be kept")


def surplus(
    counting: Iterable[CommitName], rule: Retention, metrics: Mapping[str, float] | None = None
) -> list[CommitName]:
    """Returns the commits that a rule lets go, oldest first; of one step only the newest writer's counts.

    Args:
        counting: Best first, as :func:`trusted` gives them.
        rule: What is kept.
        metrics: By key, lower is better; a commit without one is never among the best.
    """
    names = list(counting)
    by_step: dict[int, CommitName] = {}
    for commit in names:
        by_step.setdefault(commit.step, commit)
    kept = set(sorted(by_step.values(), key=lambda c: c.step, reverse=True)[: rule.last])
    if rule.every_steps:
        first: dict[int, CommitName] = {}
        for step in sorted(by_step):
            first.setdefault(step // rule.every_steps, by_step[step])
        kept |= {commit for number, commit in first.items() if number}
    known = [c for c in by_step.values() if c.key in (metrics or {})]
    kept |= set(sorted(known, key=lambda c: ((metrics or {})[c.key], -c.step))[: rule.best])
    return [commit for commit in reversed(names) if commit not in kept]


def data_prefix(step: int, writer: Writer, nonce: str) -> str:
    """Returns under which prefix the data of one attempt to save a step goes."""
    return f"data/{step:012d}-{writer.generation:08d}-{writer.owner}-{nonce}/"


def prefixes_in(keys: Iterable[str]) -> set[str]:
    """Returns the prefixes of data among keys."""
    return {m[0] for key in keys if (m := _DIRECTORY.match(key))}


def orphans(
    prefixes: Iterable[str], referred: Collection[str], newest: Writer, newest_step: Mapping[Writer, int]
) -> list[str]:
    """Returns prefixes of data that no commit that counts will ever refer to.

    Nothing depends on a clock. What an older writer than that of the highest seal commits from now on can never count;
    what the newest writer has written for a step below its newest commit is of an attempt that failed, as it saves in
    order.

    Args:
        prefixes: Listed *before* the commits were, so that no commit can have been missed.
        referred: Those that commits refer to.
        newest: The writer of the highest seal.
        newest_step: The newest commit of each writer.
    """
    gone = []
    for prefix in sorted(set(prefixes) - set(referred)):
        found = _DIRECTORY.fullmatch(prefix)
        if found is None:
            continue
        step, writer = int(found[1]), Writer(int(found[2]), found[3])
        if writer < newest or step < newest_step.get(writer, -1):
            gone.append(prefix)
    return gone
