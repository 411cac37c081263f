"""``plait schema``: the JSON Schema of job, cluster and scenario files, for editors."""

from enum import StrEnum
from typing import Annotated

import typer

from plait.cli.failures import OK
from plait.cli.options import JsonOption
from plait.cli.output import print_json


class SpecKind(StrEnum):
    """Which file the schema is of."""

    JOB = "job"
    CLUSTER = "cluster"
    SCENARIO = "scenario"


def schema(
    kind: Annotated[SpecKind, typer.Argument(help="Which file the schema is of.")] = SpecKind.JOB,
    as_json: JsonOption = False,  # noqa: ARG001 - a schema is JSON in any case
) -> int:
    """Print the JSON Schema of a file, for editors."""
    from plait.spec.schema import schema as schema_of

    print_json(schema_of(kind.value))
    return OK
