"""The memory pool: serves a training step from a plan of the steps before it, and whatever differs by best fit.

The first step is served as it comes and recorded. Once the next step has freed what the first one left, lifetimes are
known; they are packed offline, and from then on each allocation has its place. Steps of several shapes have a plan
each; which one runs is told by the sizes of its first allocations. A plan is advice: a place that is not free, or a
request that the plan does not know, is served by best fit, and holes are filled by moving idle pages. So a wrong plan
costs memory or time, never correctness.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from plait.errors import PlaitError
from plait.hardware.memory.packing import ALIGNMENT_BYTES, Obstacle
from plait.hardware.memory.pages import Area, Backing
from plait.hardware.memory.plan_book import PlanBook
from plait.hardware.memory.steps import StepRecord, plan_step, records_of
from plait.hardware.memory.trace import EventKind, MemoryTrace

MIB = 1 << 20

STRAY_RATIO = 0.1
"""A step strays from its plan once the plan has missed so much of its bytes, counted from as much of the peak on."""


class PoolExhausted(PlaitError):
    """The pool may not grow as far as a request needs."""


class NotAllocated(PlaitError):
    """An address is freed that the pool did not give out, or that was freed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How a pool behaves.

    Attributes:
        page_bytes: Smallest piece of memory that can be mapped; 2 MiB on CUDA, HIP and CANN.
        alignment_bytes: Every address is a multiple of it.
        small_bytes: Blocks below this size live in an area of their own, so that they do not hold large pages.
        stitches: Whether idle pages are put under other addresses before the pool grows.
        slack_ratio: How far the reserved bytes may exceed the peak of live ones to save moving pages in every step.
        capacity_bytes: Most bytes to take from the device, ``None`` for as many as there are.
        area_bytes: Addresses set aside for each area.
        max_plans: Most shapes of steps with a plan at a time.
    """

    page_bytes: int = 2 * MIB
    alignment_bytes: int = ALIGNMENT_BYTES
    small_bytes: int = 1 * MIB
    stitches: bool = True
    slack_ratio: float = 0.01
    capacity_bytes: int | None = None
    area_bytes: int = 1 << 42
    max_plans: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """Counts since the pool was made; bytes now and at their peaks.

    ``num_planned`` allocations had the place that the plan gave for their size; ``num_covered`` took a larger place of
    a plan for a larger step; ``num_fallback`` were served by best fit. ``num_remapped_pages`` were moved from one range
    to another, ``num_created_pages`` taken from the device.
    """

    reserved_bytes: int = 0
    peak_reserved_bytes: int = 0
    live_bytes: int = 0
    peak_live_bytes: int = 0
    num_planned: int = 0
    num_covered: int = 0
    num_fallback: int = 0
    num_remapped_pages: int = 0
    num_created_pages: int = 0
    num_plans: int = 0
    num_steps: int = 0

    @property
    def utilisation(self) -> float:
        """Peak of live bytes over the peak of reserved bytes."""
        return self.peak_live_bytes / self.peak_reserved_bytes if self.peak_reserved_bytes else 1.0


@dataclass(slots=True)
class _Block:
    area: int
    offset: int
    room: int
    size: int
    record: StepRecord
    position: int
    step: int


class MemoryPool:
    """Allocations of one device.

    Example:
        >>> pool = MemoryPool()
        >>> address = pool.allocate(4096)
        >>> pool.free(address)
        >>> pool.end_step()
        'step 0 is recorded; its plan follows when the next step has freed what it left'
    """

    def __init__(self, settings: PoolSettings | None = None, backing: Backing | None = None) -> None:
        self.settings = settings or PoolSettings()
        self._backing = backing
        self._areas: list[Area] = []
        self._area_of: dict[tuple[int, str], int] = {}
        self._live: dict[int, _Block] = {}
        self._spare_pages = self._owned_pages = self._peak_owned_pages = 0
        self._live_bytes = self._peak_live_bytes = 0
        self._book = PlanBook(self.settings.max_plans)
        self._record = StepRecord()
        self._previous: StepRecord | None = None
        self._repeats = True
        self._step = 0
        self._missed_bytes = self._step_bytes = 0
        self._tally: Counter[str] = Counter()

    def allocate(self, size_bytes: int, stream: int = 0) -> int:
        """Returns the address of ``size_bytes`` bytes that no other live block touches.

        Raises:
            PoolExhausted: The pool would outgrow its capacity.
        """
        room = self._room(size_bytes)
        area, offset, how = self._place(size_bytes, room, stream)
        self._areas[area].occupy(offset, room)
        try:
            self._fetch(area, self._areas[area].missing(offset, room), planned=how != "fallback")
        except PoolExhausted:
            self._areas[area].vacate(offset, room)
            raise
        self._tally[how] += 1
        self._step_bytes += room
        self._missed_bytes += room if how == "fallback" else 0
        address = self._areas[area].base + offset
        position = self._record.add(size_bytes, stream)
        self._live[address] = _Block(area, offset, room, size_bytes, self._record, position, self._step)
        self._live_bytes += size_bytes
        self._peak_live_bytes = max(self._peak_live_bytes, self._live_bytes)
        return address

    def free(self, address: int) -> None:
        """Returns a block; its memory may be given out again at once.

        Raises:
            NotAllocated: There is no live block at this address.
        """
        block = self._live.pop(address, None)
        if block is None:
            raise NotAllocated(f"no live block begins at address {address:#x}")
        self._areas[block.area].vacate(block.offset, block.room)
        self._live_bytes -= block.size
        block.record.freed(block.position, self._record, self._step - block.step)

    def end_step(self) -> str:
        """Marks the end of a training step and plans where that is worth it; returns what was done, and why."""
        finished, previous = self._record, self._previous
        if finished.signature in self._book and self._step_bytes:
            finished.missed_ratio = self._missed_bytes / self._step_bytes
        self._book.finished(finished)
        reason = f"step {self._step} is recorded; its plan follows when the next step has freed what it left"
        if previous is not None:
            reason = self._consider(previous)
        self._previous, self._record = finished, StepRecord()
        self._book.begin_step()
        self._repeats = True
        self._missed_bytes = self._step_bytes = 0
        self._step += 1
        return reason

    def _consider(self, record: StepRecord) -> str:
        """Plans a step whose frees are all known by now, if that is worth it."""
        lifetimes, _ = record.lifetimes()
        stays: dict[int, list[Obstacle]] = {}
        for block in self._live.values():
            if block.step < self._step:
                stays.setdefault(block.area, []).append((block.offset, block.room))
        staying = sum(room for blocks in stays.values() for _, room in blocks)
        wanted, why = self._book.why_plan(record, lifetimes.peak_bytes() + staying)
        if not wanted:
            return f"step {self._step - 1} is not planned: {why}"
        plan = plan_step(record, self._area_for, stays, self.settings.alignment_bytes)
        self._book.add(plan)
        self._tally["plans"] += 1
        return f"step {self._step - 1} is planned, for {why}: {plan.reason}"

    def _place(self, size: int, room: int, stream: int) -> tuple[int, int, str]:
        """Returns area, offset and who chose them."""
        place = self._book.next_place(size, stream)
        if place is not None and not self._strayed() and self._areas[place.area].is_free(place.offset, room):
            return place.area, place.offset, "planned" if place.exact else "covered"
        area = self._area_for(size, stream)
        position, before = len(self._record.sizes), self._previous
        self._repeats = self._repeats and before is not None and before.has(position, size)
        if self.settings.stitches and self._repeats and before is not None and before.ends[position] < 0:
            # What outlived the last step, such as gradients, stays out of the way of the next step's plan.
            area = self._area(stream, "lasting")
        offset = self._areas[area].find(room)
        if offset is None:
            raise PoolExhausted(f"no range of {room} bytes is free among {self.settings.area_bytes} addresses")
        return area, offset, "fallback"

    def _strayed(self) -> bool:
        """Whether this step departs so far from its plan that best fit alone serves the rest better than both mixed."""
        begun = self._step_bytes > STRAY_RATIO * self._peak_live_bytes
        return begun and self._missed_bytes > STRAY_RATIO * self._step_bytes

    def _area_for(self, size: int, stream: int) -> int:
        return self._area(stream, "small" if size < self.settings.small_bytes else "large")

    def _area(self, stream: int, use: str) -> int:
        settings = self.settings
        number = self._area_of.setdefault((stream, use), len(self._areas))
        if number == len(self._areas):
            self._areas.append(Area(number * settings.area_bytes, settings.page_bytes, settings.area_bytes))
        return number

    def _room(self, size: int) -> int:
        alignment = self.settings.alignment_bytes
        return max(-(-size // alignment), 1) * alignment

    def _within_slack(self) -> int:
        """Returns how many pages may be created beyond what is needed."""
        most_bytes = int((1 + self.settings.slack_ratio) * self._peak_live_bytes)
        return max(most_bytes // self.settings.page_bytes - self._owned_pages, 0)

    def _fetch(self, number: int, pages: list[int], planned: bool) -> None:
        """Puts pages under an area: spare ones first, then idle ones from elsewhere, then new ones.

        Under a planned place, new ones come before idle ones within the slack: the place will be wanted in each step.
        """
        if not pages:
            return
        short = len(pages) - self._spare_pages
        if planned and 0 < short <= self._within_slack():
            self._create(short)
            short = 0
        if short > 0 and self.settings.stitches:
            short -= self._take_idle(number, short)
        if short > 0:
            self._create(short)
        self._spare_pages -= len(pages)
        area = self._areas[number]
        area.set_mapped(pages, True)
        if self._backing is not None:
            for first, count in _runs(pages):
                self._backing.map(area.base + first * self.settings.page_bytes, count)

    def _take_idle(self, number: int, most: int) -> int:
        """Unmaps up to ``most`` idle pages, those of the same area and the highest first; returns how many."""
        taken = 0
        for other in [number, *(index for index in range(len(self._areas)) if index != number)]:
            idle = self._areas[other].idle()
            pages = idle[max(len(idle) - (most - taken), 0) :]
            self._unmap(other, pages)
            self._tally["remapped"] += len(pages)
            taken += len(pages)
            if taken == most:
                break
        return taken

    def _unmap(self, number: int, pages: list[int]) -> None:
        area = self._areas[number]
        area.set_mapped(pages, False)
        self._spare_pages += len(pages)
        if self._backing is not None:
            for first, count in _runs(pages):
                self._backing.unmap(area.base + first * self.settings.page_bytes, count)

    def _create(self, num_pages: int) -> None:
        owned = self._owned_pages + num_pages
        capacity = self.settings.capacity_bytes
        if capacity is not None and owned * self.settings.page_bytes > capacity:
            held = f"{self._live_bytes} live, {self._owned_pages * self.settings.page_bytes} reserved of {capacity}"
            raise PoolExhausted(f"no room for {num_pages * self.settings.page_bytes} bytes more: {held}")
        self._owned_pages = owned
        self._peak_owned_pages = max(self._peak_owned_pages, owned)
        self._spare_pages += num_pages
        self._tally["created"] += num_pages

    def learn(self, trace: MemoryTrace) -> str:
        """Plans from a recorded trace before anything is served: from a rehearsal on fake tensors, or an earlier run.

        What stays from step to step is expected at the lowest addresses. Returns what was planned.
        """
        steps = {record.signature: (record, stays) for record, stays in records_of(trace)}
        for record, stays in list(steps.values())[-self.settings.max_plans :]:
            bytes_of: Counter[int] = Counter()
            for size, stream in stays:
                bytes_of[self._area_for(size, stream)] += self._room(size)
            walls = {area: [(0, size)] for area, size in bytes_of.items()}
            self._book.add(plan_step(record, self._area_for, walls, self.settings.alignment_bytes))
            self._tally["plans"] += 1
        return f"{len(self._book)} plans from {trace.num_steps} recorded steps"

    def trim(self) -> int:
        """Gives idle pages back to the device; returns the bytes."""
        for number, area in enumerate(self._areas):
            self._unmap(number, area.idle())
        released = self._spare_pages
        if self._backing is not None and released:
            self._backing.release(released)
        self._owned_pages -= released
        self._spare_pages = 0
        return released * self.settings.page_bytes

    def statistics(self) -> PoolStatistics:
        """Returns the counts so far."""
        return PoolStatistics(
            reserved_bytes=self._owned_pages * self.settings.page_bytes,
            peak_reserved_bytes=self._peak_owned_pages * self.settings.page_bytes,
            live_bytes=self._live_bytes,
            peak_live_bytes=self._peak_live_bytes,
            num_planned=self._tally["planned"],
            num_covered=self._tally["covered"],
            num_fallback=self._tally["fallback"],
            num_remapped_pages=self._tally["remapped"],
            num_created_pages=self._tally["created"],
            num_plans=self._tally["plans"],
            num_steps=self._step,
        )

    def live_ranges(self) -> list[tuple[int, int]]:
        """Returns address and size of every live block, in the order of addresses."""
        return sorted((address, block.size) for address, block in self._live.items())


def serve(trace: MemoryTrace, pool: MemoryPool) -> PoolStatistics:
    """Lets the pool serve a whole trace, event by event, knowing nothing of what comes; blocks of no bytes are skipped.

    Raises:
        PoolExhausted: The pool's capacity does not suffice.
    """
    addresses: dict[int, int] = {}
    for event in trace:
        if event.kind is EventKind.STEP:
            pool.end_step()
        elif event.size_bytes == 0:
            continue
        elif event.kind is EventKind.ALLOCATE:
            addresses[event.block] = pool.allocate(event.size_bytes, event.stream)
        else:
            pool.free(addresses.pop(event.block))
    return pool.statistics()


def _runs(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Yields first page and length of each run of neighbours."""
    first = previous = pages[0] if pages else 0
    for page in pages[1:]:
        if page != previous + 1:
            yield first, previous + 1 - first
            first = page
        previous = page
    if pages:
        yield first, previous + 1 - first
