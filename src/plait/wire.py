"""Frozen dataclasses to JSON and back, by their type hints; used by the store, the API and the agents' messages."""

from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


class Codec(Generic[T]):
    """Encodes values of one (union) type as compact JSON lines.

    Unions are told apart by a ``kind: Literal[...]`` field of each member.
    """

    def __init__(self, form: Any) -> None:
        self._adapter: TypeAdapter[T] = TypeAdapter(form)

    def encode(self, value: T) -> bytes:
        """Returns JSON without a trailing newline."""
        return self._adapter.dump_json(value)

    def decode(self, data: bytes | str) -> T:
        """Returns the value; raises ``pydantic.ValidationError`` where the data do not fit the type."""
        return self._adapter.validate_json(data)
