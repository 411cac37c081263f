"""A mapping of a YAML file, as it is written: one class a mapping, one attribute a key.

What one key may hold is said by the classes of ``job_document``, ``cluster_document`` and ``scenario_document``, whose
docstrings reach the JSON Schema; what several keys say together is checked in ``job_rules`` and ``cluster_rules``.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=1_000_000)]


class Document(BaseModel):
    """A mapping of a YAML file; other keys than its own are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)
