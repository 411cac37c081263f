"""Workloads of Pollux and Sia: jobs that name an application, whose profile tells how fast it trains."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plait.schedule.policy import Configuration, Rate
from plait.sim.jobs import Rates, SimJob
from plait.sim.tables import BadTrace
from plait.sim.traces.reading import Format, Reading

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One application: seconds of a step by (nodes, replicas, samples a replica), progress by batch size.

    ``progress[batch]`` is (progress a step, all progress there is): a step of a larger batch gets further, but not in
    proportion (statistical efficiency).
    """

    step_s: Mapping[tuple[int, int, int], float]
    progress: Mapping[int, tuple[float, float]]


def read_workload(path: Path, reading: Reading) -> tuple[SimJob, ...]:
    """Reads a workload; ``reading.profiles`` is the folder with one folder an application.

    Work is progress at the job's batch size. Rates on one type of device are measured; other types are scaled by their
    relative speeds.

    Raises:
        BadTrace: A cell is no number, or there is no folder of profiles.
    """
    if reading.profiles is None:
        raise BadTrace(f"{path}: a workload of applications needs their profiles; name their folder with --profiles")
    if not reading.profiles.is_dir():
        raise BadTrace(f"{reading.profiles}: no folder of profiles")
    profiles: dict[str, Profile | None] = {}
    jobs: list[SimJob] = []
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        for row in rows:
            try:
                application = row["application"]
                if application not in profiles:
                    profiles[application] = read_profile(reading.profiles, application)
                profile = profiles[application]
                if profile is None:
                    reading.left_out[f"application {application} has no profile"] += 1
                else:
                    jobs.append(_job(row, reading, profile, len(jobs)))
            except ValueError as error:
                raise BadTrace(f"{path}:{rows.line_num}: {error}") from error
    return tuple(jobs)


def _job(row: Mapping[str, str], reading: Reading, profile: Profile, number: int) -> SimJob:
    application, size, batch = row["application"], int(row["num_replicas"]), int(row["batch_size"])
    trained = min(profile.progress, key=lambda known: abs(known - batch))
    per_step, work = profile.progress[trained]
    sizes = _sizes(profile, batch) if reading.is_elastic else (size,)
    rates = _rates(profile, reading, batch, sizes, per_step)
    return SimJob(
        id=f"j{number:06d}",
        submitted_at_s=float(row["time"]),
        num_workers=size,
        work=work,
        rates=rates,
        kind=application,
        workers=(min(sizes), max(sizes)) if len(sizes) > 1 else (0, 0),
    )


def _sizes(profile: Profile, batch: int) -> tuple[int, ...]:
    return tuple(sorted({replicas for _, replicas, _ in profile.step_s if replicas <= batch}))


def _rates(profile: Profile, reading: Reading, batch: int, sizes: Sequence[int], per_step: float) -> Rates:
    base = reading.speeds.by_type.get(reading.speeds.reference) or 1.0
    found: dict[Configuration, Rate] = {}
    for size in sizes:
        for is_spread in (False, True):
            step_s = _step_s(profile, size, max(1, batch // size), is_spread=is_spread)
            for name, speed in reading.speeds.by_type.items():
                configuration = Configuration(counts=((name, size),), is_spread=is_spread)
                found[configuration] = Rate(per_s=per_step / step_s * speed / base)
    return found


def _step_s(profile: Profile, size: int, local: int, *, is_spread: bool) -> float:
    """Returns the seconds of a step: of the profile nearest in replicas and nodes, scaled to the samples a replica."""
    nearest = min({replicas for _, replicas, _ in profile.step_s}, key=lambda known: (abs(known - size), known))
    some = {key: value for key, value in profile.step_s.items() if key[1] == nearest}
    nodes = (max if is_spread else min)(key[0] for key in some)
    at = sorted((key[2], value) for key, value in some.items() if key[0] == nodes)
    below = [point for point in at if point[0] <= local] or at[:1]
    above = [point for point in at if point[0] >= local] or at[-1:]
    (low, low_s), (high, high_s) = below[-1], above[0]
    if high > low:
        return low_s + (high_s - low_s) * (local - low) / (high - low)
    return low_s * max(1.0, local / low)


def read_profile(folder: Path, application: str) -> Profile | None:
    """Reads placements.csv, scalability.csv and validation-BATCH.csv of an application; None where one is missing."""
    where = folder / application
    step_s: dict[tuple[int, int, int], float] = {}
    for row in _rows(where / "scalability.csv"):
        step_s[int(row["num_nodes"]), int(row["num_replicas"]), int(row["local_bsz"])] = float(row["step_time"])
    for row in _rows(where / "placements.csv"):
        placement = row["placement"]
        replicas = sum(int(digit) for digit in placement)
        step_s[len(placement), replicas, int(row["local_bsz"])] = float(row["step_time"])
    progress = {}
    for path in sorted(where.glob("validation-*.csv")):
        last = _rows(path)[-1]
        total, steps = float(last["progress"]), float(last["iteration"])
        progress[int(path.stem.partition("-")[2])] = (total / steps, total)
    if not step_s or not progress:
        return None
    return Profile(step_s=step_s, progress=progress)


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _looks_so(head: Sequence[str]) -> bool:
    return {cell.strip() for cell in head[0].split(",")}.issuperset(COLUMNS)


FORMATS = (Format(name="Pollux or Sia", looks_so=_looks_so, read=read_workload),)
