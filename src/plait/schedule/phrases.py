"""Words for numbers of workers, as reasons have them."""


def of_workers(number: int) -> str:
    """Returns ``1 worker`` or ``2 workers``."""
    return f"{number} worker" if number == 1 else f"{number} workers"
