"""Types of single values in the YAML files: text, names, quantities, accelerator types, URLs."""

import re
import shlex
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from plait.hardware.catalog import known_types
from plait.spec import units
from plait.spec.custom_ops import CUSTOM_OPS, SPELLINGS
from plait.spec.tree import Trap
from plait.spec.units import Quantity, shown
from plait.words import did_you_mean

WANTS_TEXT = "wants_text"
"""Error type of a value that is no text; the message needs the words of the file, so the loader writes it."""

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
NODE_NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
ENVIRONMENT_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
WORD_PATTERN = r"^[a-z][a-z0-9_]*$"
LISTEN_PATTERN = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"
URL_PATTERN = r"^(s3|gs|az)://[^/\s]+.*$|^file:///.+$|^[^:\s]+$"
SOURCE_PATTERN = r"^(s3|gs|az|https?)://[^/\s]+.*$|^file:///.+$|^[^:\s]+$"
STORE_PATTERN = r"^sqlite:///.+$"

RESERVED_ENVIRONMENT = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"),
)
"""Variables that Plait sets for every worker, besides those that start with ``PLAIT_``."""

USERS_PLAIT_VARIABLES = ("PLAIT_FAULTS",)
"""Variables of Plait's that are the user's to set: faults to be tried, with their coordinates."""


def check_text(value: object) -> str:
    """Returns the value if it is text that a program can be given."""
    if type(value) is not str:
        raise PydanticCustomError(WANTS_TEXT, "expected text")
    if "\0" in value or not _is_encodable(value):
        raise ValueError(f"text must not hold NUL or half characters; got {shown(value)}")
    return value


def check_name(value: object) -> str:
    """Returns the value if it is a name of small letters, digits and hyphens."""
    text = check_text(value)
    if re.fullmatch(NAME_PATTERN, text):
        return text
    near = re.sub(r"[^a-z0-9]+", "-", text.casefold()).strip("-")[:63].strip("-")
    hint = f"; did you mean {near!r}?" if near else ""
    raise ValueError(
        f"a name has small letters, digits and '-', at most 63, no '-' at the ends; got {shown(text)}{hint}"
    )


def check_accelerator(value: object) -> str:
    """Returns the value if the catalogue knows this accelerator type."""
    text = check_text(value)
    types = known_types()
    if text not in types:
        hint = did_you_mean(text, types) or f"; known types are {', '.join(types)}"
        raise ValueError(f"unknown accelerator type {shown(text)}{hint}")
    return text


def check_custom_op(value: object) -> str:
    """Returns the registered name of an operator."""
    text = check_text(value)
    name = SPELLINGS.get(text, text)
    if name not in CUSTOM_OPS:
        hint = did_you_mean(text, CUSTOM_OPS) or f"; registered are {', '.join(CUSTOM_OPS)}"
        raise ValueError(f"unknown custom operator {shown(text)}{hint}")
    return name


def check_command(value: object) -> object:
    """Returns the value unless it is one text, which is what a shell would take."""
    if isinstance(value, str) and value.strip() and not isinstance(value, Trap):
        raise ValueError(f"expected a list of words, not one text; did you mean {_as_list(value)}?")
    return value


def check_workers(value: object) -> object:
    """Returns the value unless it is one number."""
    if type(value) is int:
        raise ValueError(f"expected a range; did you mean {{min: {value}, max: {value}}}?")
    return value


def check_environment_name(value: object) -> str:
    """Returns the value if a worker's environment may hold it."""
    text = check_text(value)
    if not re.fullmatch(ENVIRONMENT_PATTERN, text):
        raise ValueError(f"a variable's name has letters, digits and '_', no digit first; got {shown(text)}")
    if text in RESERVED_ENVIRONMENT or (text.startswith("PLAIT_") and text not in USERS_PLAIT_VARIABLES):
        raise ValueError(f"Plait sets the variable {text} itself; remove it")
    return text


def check_loader_workers(value: object) -> object:
    """Returns the value if it is a number of loader processes or ``auto``."""
    if value == "auto" or (type(value) is int and 0 <= value <= 1024):
        return value
    raise ValueError(f"expected auto or a whole number from 0 to 1024; got {shown(value)}")


def check_interval(value: object) -> object:
    """Returns seconds, or ``auto``."""
    return value if value == "auto" else units.parse_duration(value)


def check_time_of_day(value: object) -> int:
    """Returns seconds after midnight; the text must be quoted, as YAML 1.1 reads times as numbers."""
    return units.parse_time_of_day(check_text(value) if isinstance(value, str) else value)


def check_listen(value: object) -> str:
    """Returns the value if it is ``host:port``."""
    text = check_text(value)
    if not re.fullmatch(LISTEN_PATTERN, text) or int(text.rpartition(":")[2]) > 65535:
        raise ValueError(f"expected host:port such as 127.0.0.1:9400; got {shown(text)}")
    return text


def _matching(pattern: str, expected: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        text = check_text(value)
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {expected}; got {shown(text)}")
        return text

    return check


def _url(schemes: tuple[str, ...], pattern: str, expected: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        text = check_text(value)
        if re.fullmatch(pattern, text):
            return text
        scheme, colon, rest = text.partition(":")
        if colon and scheme not in schemes:
            hint = did_you_mean(scheme, schemes) or f"; schemes here: {', '.join(schemes)}"
            raise ValueError(f"unknown scheme {shown(scheme)} in {shown(text)}{hint}")
        if scheme == "file" and rest:
            raise ValueError(f"expected file:/// and an absolute path; got {shown(text)}")
        raise ValueError(f"expected {expected}; got {shown(text)}")

    return check


def _as_list(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    safe = [word if re.fullmatch(r"[\w./=+-]*[A-Za-z_/][\w./=+-]*", word) else f'"{word}"' for word in words]
    return f"[{', '.join(safe)}]"


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _written(quantity: Quantity) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": quantity.pattern, "examples": [quantity.example]})


def _text(pattern: str, *examples: str) -> WithJsonSchema:
    shown_examples = {"examples": list(examples)} if examples else {}
    return WithJsonSchema({"type": "string", "pattern": pattern, **shown_examples})


_check_url = _url(("s3", "gs", "az", "file"), URL_PATTERN, "a path or a URL such as s3://bucket/path")
_check_source = _url(
    ("s3", "gs", "az", "https", "http", "file"), SOURCE_PATTERN, "a path or a URL such as s3://bucket/path"
)
_check_store = _url(("sqlite",), STORE_PATTERN, "a URL such as sqlite:///plait-state.db")
_check_node_name = _matching(NODE_NAME_PATTERN, "a name of letters, digits, '.', '_' and '-', at most 63")
_check_word = _matching(WORD_PATTERN, "a word of small letters, digits and '_'")

Text = Annotated[str, BeforeValidator(check_text), WithJsonSchema({"type": "string"})]
FilePath = Annotated[str, BeforeValidator(_matching(r"[^\n]+", "a path")), _text(r"^[^\n]+$", "/var/cache/train")]
Name = Annotated[str, BeforeValidator(check_name), _text(NAME_PATTERN)]
NodeName = Annotated[str, BeforeValidator(_check_node_name), _text(NODE_NAME_PATTERN, "node1")]
Word = Annotated[str, BeforeValidator(_check_word), _text(WORD_PATTERN, "fifo_backfill")]
EnvironmentName = Annotated[str, BeforeValidator(check_environment_name), _text(ENVIRONMENT_PATTERN, "OMP_NUM_THREADS")]
Accelerator = Annotated[
    str, BeforeValidator(check_accelerator), WithJsonSchema({"type": "string", "enum": list(known_types())})
]
CustomOp = Annotated[
    str, BeforeValidator(check_custom_op), WithJsonSchema({"type": "string", "enum": sorted({*CUSTOM_OPS, *SPELLINGS})})
]
CheckpointUrl = Annotated[str, BeforeValidator(_check_url), _text(URL_PATTERN, "s3://checkpoints/resnet50")]
SourceUrl = Annotated[str, BeforeValidator(_check_source), _text(SOURCE_PATTERN, "s3://datasets/imagenet")]
StoreUrl = Annotated[str, BeforeValidator(_check_store), _text(STORE_PATTERN, "sqlite:///var/lib/plait/state.db")]
Listen = Annotated[str, BeforeValidator(check_listen), _text(LISTEN_PATTERN, "127.0.0.1:9400")]
Command = Annotated[list[Text], BeforeValidator(check_command), Field(min_length=1)]
WORKERS = BeforeValidator(check_workers)
LoaderWorkers = Annotated[
    int | Literal["auto"],
    BeforeValidator(check_loader_workers),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 0, "maximum": 1024}]}),
]
Duration = Annotated[
    float,
    BeforeValidator(units.parse_duration),
    _written(units.DURATION),
]
Interval = Annotated[
    float | Literal["auto"],
    BeforeValidator(check_interval),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "auto"},
                {"type": "string", "pattern": units.DURATION.pattern, "examples": [units.DURATION.example]},
            ]
        }
    ),
]
Size = Annotated[int, BeforeValidator(units.parse_size), _written(units.SIZE)]
Rate = Annotated[float, BeforeValidator(units.parse_rate), _written(units.RATE)]
TimeOfDay = Annotated[int, BeforeValidator(check_time_of_day), _text(units.TIME_OF_DAY_PATTERN, "08:00")]
Cores = Annotated[
    float,
    BeforeValidator(units.parse_cores),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "maximum": 100_000, "examples": [0.5]}),
]
