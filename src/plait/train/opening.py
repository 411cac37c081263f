"""A session that is not open yet, which says so to those who use it without ``with``."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from types import TracebackType
from typing import Generic, NoReturn, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Opening(AbstractContextManager[T], Generic[T]):
    """What is opened by ``with``; everything else that is asked of it raises AttributeError with a line on how."""

    def __init__(self, inner: AbstractContextManager[T], name: str) -> None:
        self._inner, self._name = inner, name

    def __enter__(self) -> T:
        """Opens it."""
        return self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Closes it."""
        return self._inner.__exit__(kind, error, trace)

    def __getattr__(self, asked: str) -> NoReturn:
        """Says how it is opened."""
        name = self.__dict__.get("_name", "it")
        raise AttributeError(f"{name} is not open yet: write `with plait.{name}(...) as run:`, then run.{asked}")


def opened_by_with(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
    """As :func:`contextlib.contextmanager`, of a generator function; what it returns is an :class:`Opening`."""
    made_of = contextmanager(function)

    @wraps(function)
    def opening(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
        return Opening(made_of(*args, **kwargs), function.__name__)

    return opening
