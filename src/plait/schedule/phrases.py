"""Words for numbers of workers and for times, as reasons have them."""


def of_workers(number: int) -> str:
    """Returns ``1 worker`` or ``2 workers``."""
    return f"{number} worker" if number == 1 else f"{number} workers"


def span(seconds: float) -> str:
    """Returns a time as people say it: ``90 s``, ``12 min``, ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
