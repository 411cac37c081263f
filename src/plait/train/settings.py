"""What a session is set to: from its own arguments, and over them from what launched the process."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

from plait.errors import PlaitError
from plait.spec.job import Checkpoint, Job, PrecisionPlan
from plait.wire import Codec

Split = Literal["by_throughput", "even"]
Rule = Literal["none", "linear", "sqrt", "adascale"]

DEFAULT_MICRO_BATCHES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything about the run that is not the model, the data or this member's place.

    Attributes:
        global_batch_size: samples in a global step.
        micro_batches: K, the units in which a step is split; at least 8 for each device lose little to rounding.
        base_batch_size: the global batch that the learning rate was chosen for, where another one is used.
    """

    global_batch_size: int
    micro_batches: int
    seed: int = 0
    bitwise: bool = False
    precision: PrecisionPlan = field(default_factory=PrecisionPlan)
    heartbeat_interval_s: float = 0.2
    heartbeat_timeout_s: float = 1.0
    exchange_timeout_s: float = 60.0
    formation_timeout_s: float = 120.0
    bucket_bytes: int = 25 * 2**20
    overlap: bool = True
    measures: str = "auto"
    split: Split = "by_throughput"
    max_fused: int | None = None
    max_share: int | None = None
    learning_rate: Rule = "none"
    base_batch_size: int | None = None
    checkpoint: Checkpoint | None = None
    compression: str = "none"
    warm_up_steps: int | None = None


_CODECS = {"fp16": "fp16", "topk": "top_k"}
"""The codecs behind the words of job files."""


def from_job(settings: Settings, job: Job) -> Settings:
    """Returns the settings with everything that the job file says put over them.

    Raises:
        PlaitError: the job asks for something that training does not do.
    """
    asked = job.communication.compression
    if asked == "powersgd":
        raise PlaitError("communication.compression is 'powersgd', which sessions do not do: use onebit_adam or topk")
    settings = replace(
        settings,
        compression=_CODECS.get(asked, asked),
        warm_up_steps=job.communication.warmup_steps,
        precision=job.precision,
        heartbeat_interval_s=job.failure.heartbeat_interval_s,
        heartbeat_timeout_s=job.failure.heartbeat_timeout_s,
        exchange_timeout_s=job.communication.timeout_s,
        bucket_bytes=job.communication.bucket_bytes,
        overlap=job.communication.overlap,
        measures=job.communication.measure,
        checkpoint=job.checkpoint,
    )
    batching = job.batching
    if batching is None:
        return settings
    return replace(
        settings,
        base_batch_size=settings.base_batch_size or settings.global_batch_size,
        global_batch_size=batching.global_batch_size,
        micro_batches=batching.micro_batches or _units(batching.global_batch_size),
        split=batching.split,
        learning_rate=batching.learning_rate,
        bitwise=batching.bitwise,
    )


def _units(global_batch: int) -> int:
    """Returns the largest number of equal micro-batches up to the default."""
    return next(k for k in range(min(DEFAULT_MICRO_BATCHES, global_batch), 0, -1) if global_batch % k == 0)


def units_of(global_batch: int, micro_batches: int | None) -> int:
    """Returns K where it was not given."""
    return micro_batches if micro_batches is not None else _units(global_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process stands: who it is, where it listens, and whom it knows. ``seeds`` empty: it is alone."""

    me: str
    listen: str = ""
    seeds: Mapping[str, str] = field(default_factory=dict)
    joins: bool = False
    rendezvous: str | None = None
    world_size: int = 1
    rank: int = 0
    secret: str = ""
    island: str = ""
    measures: str = ""
    accelerator_type: str = "CPU"
    duty_ratio: float = 1.0
    forced_split: Mapping[str, int] | None = None


def place_from_environment(environment: Mapping[str, str] | None = None) -> Place:
    """Reads PLAIT_* or, failing these, torchrun's variables.

    Raises:
        PlaitError: a variable is malformed.
    """
    env = os.environ if environment is None else environment
    common = Place(
        me=env.get("PLAIT_MEMBER", f"w{env.get('RANK', '0')}"),
        joins=env.get("PLAIT_JOIN") == "1",
        secret=env.get("PLAIT_SECRET", env.get("TORCHELASTIC_RUN_ID", "")),
        island=env.get("PLAIT_ISLAND", ""),
        measures=_word(env, "PLAIT_MEASURE", ("", "auto", "now", "never")),
        accelerator_type=env.get("PLAIT_ACCELERATOR_TYPE", "CPU"),
        duty_ratio=_number(env, "PLAIT_DUTY_RATIO", float),
        forced_split=_forced(env.get("PLAIT_SPLIT", "")),
        world_size=_number(env, "WORLD_SIZE", int),
        rank=_number(env, "RANK", int, "0"),
    )
    if "PLAIT_SEEDS" in env:
        listen = env.get("PLAIT_LISTEN", "127.0.0.1:0")
        seeds = dict(_seed(part) for part in env["PLAIT_SEEDS"].split(",") if part)
        return replace(common, listen=listen, seeds=seeds)
    if common.world_size > 1:
        if "MASTER_ADDR" not in env or "MASTER_PORT" not in env:
            raise PlaitError(f"WORLD_SIZE is {common.world_size}, but MASTER_ADDR and MASTER_PORT are not both set")
        return replace(common, rendezvous=f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}", listen="")
    return common


_Number = TypeVar("_Number", int, float)


def _number(env: Mapping[str, str], name: str, kind: type[_Number], default: str = "1") -> _Number:
    text = env.get(name, default)
    try:
        return kind(text)
    except ValueError:
        raise PlaitError(f"{name} is {text!r}; expected a number") from None


def _word(env: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    word = env.get(name, known[0])
    if word not in known:
        raise PlaitError(f"{name} is {word!r}; expected one of {', '.join(filter(None, known))}")
    return word


def _seed(part: str) -> tuple[str, str]:
    member, at, address = part.partition("@")
    if not at or ":" not in address:
        raise PlaitError(f"PLAIT_SEEDS has {part!r}; expected member@host:port")
    return member, address


def _forced(text: str) -> dict[str, int] | None:
    if not text:
        return None
    shares = {}
    for part in text.split(","):
        member, _, number = part.partition(":")
        if not member or not number.isdecimal():
            raise PlaitError(f"PLAIT_SPLIT has {part!r}; expected member:micro_batches, such as w0:8")
        shares[member] = int(number)
    return shares


def job_from_environment() -> Job | None:
    """Returns the job that this process is part of, if it was started by an agent."""
    text = os.environ.get("PLAIT_JOB")
    if not text:
        return None
    codec: Codec[Job] = Codec(Job)
    return codec.decode(text)
