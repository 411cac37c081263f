"""How much work tasks have left: as reported, or as good a guess as attained service allows."""

import numpy as np

from plait.schedule.policies.central_path import Floats
from plait.schedule.policies.gangs import Gangs

UNKNOWN_S = 3600.0
"""A task of unknown length that has not run yet counts as an hour on its fastest type."""


def amounts_left(gangs: Gangs) -> Floats:
    """Returns remaining work in each task's unit.

    Where it is not known a task is taken to be half done (the best guess for heavy-tailed lengths), and for at least
    an hour of work on its fastest type.
    """
    fastest = gangs.rates.max(axis=1, initial=0.0)
    guess = [
        max(task.done_work or 0.0, UNKNOWN_S * float(fastest[i]))
        if task.remaining_work is None
        else task.remaining_work
        for i, task in enumerate(gangs.tasks)
    ]
    return np.array(guess, dtype=np.float64)
