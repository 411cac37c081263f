"""What an exchange asks of those that carry it: a group of members, and a wire that turns values into what travels."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from plait.train.collectives.layout import Stretch


class Ledger(Protocol):
    """What a wire remembers between steps.

    Attributes:
        settles: Whether the coming step sends all that members owe, nearly.
    """

    settles: bool

    @property
    def owes(self) -> bool:
        """Whether this member owes more than a rounding."""
        ...

    def commit(self) -> None:
        """The step's exchanges count."""
        ...

    def forget(self) -> None:
        """The exchanges so far do not count."""
        ...


class Group(Protocol):
    """What an exchange needs of a process group."""

    size: int

    def all_reduce(self, tensor: Tensor, op: Any = ...) -> Any:
        """Starts an all-reduce in place and returns a work with ``is_completed`` and ``wait``."""
        ...

    def rest(self) -> None:
        """Somebody is about to wait for works."""
        ...


class Wire(Protocol):
    """Sends one stretch of the flat buffer and puts the sum over all members back in its place.

    Attributes:
        is_frozen: Whether momenta travel in place of gradients.
        codec: The name of what most values travel in.
        ledger: What is remembered between steps, if anything.
    """

    @property
    def is_frozen(self) -> bool:
        """See above."""
        ...

    @property
    def codec(self) -> str:
        """See above."""
        ...

    @property
    def ledger(self) -> Ledger | None:
        """See above."""
        ...

    def start(self, group: Group, values: Tensor, stretch: Stretch, share: float) -> Sequence[Any]:
        """Starts the exchange of ``values``, in place; returns its works.

        Args:
            group: The members.
            values: The stretch's part of the flat buffer, weighted sums.
            stretch: Which one it is.
            share: This member's part of the step, 0 to 1; over all members they add up to 1.
        """
        ...

    def freeze(self) -> None:
        """The warm-up of an optimizer that exchanges momenta is over."""
        ...


class PlainWire:
    """Sends the values as they are."""

    is_frozen = False
    codec = "fp32"
    ledger: Ledger | None = None

    def start(self, group: Group, values: Tensor, stretch: Stretch, share: float) -> Sequence[Any]:  # noqa: ARG002
        """Starts one all-reduce."""
        return (group.all_reduce(values),) if group.size > 1 else ()

    def freeze(self) -> None:
        """Nothing changes."""
