"""The plain reference: the configuration program as a mixed-integer program, solved exactly. Slow, for tests."""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from plait.schedule.allocation.program import NOTHING, Ints, Program


def solve_exactly(program: Program, relative_gap: float = 1e-7) -> Ints:
    """Returns the best choice (jobs,), by branch and bound over all wanted (job, configuration) pairs.

    Raises:
        RuntimeError: The solver gave up.
    """
    jobs, configurations = np.nonzero(program.values > 0)
    choice = np.full(program.num_jobs, NOTHING, dtype=np.intp)
    if not len(jobs):
        return choice
    columns = np.arange(len(jobs))
    once = csr_array((np.ones(len(jobs)), (jobs, columns)), shape=(program.num_jobs, len(jobs)))
    constraints = [
        LinearConstraint(once, ub=1.0),
        LinearConstraint(csr_array(program.uses[configurations].T), ub=program.capacity),
    ]
    for group, limits in enumerate(program.group_capacity):
        for resource in np.flatnonzero(np.isfinite(limits)):
            row = np.where(program.groups[jobs] == group, program.uses[configurations, resource], 0.0)
            constraints.append(LinearConstraint(csr_array(row[None, :]), ub=limits[resource]))
    result = milp(
        -program.values[jobs, configurations],
        constraints=constraints,
        integrality=np.ones(len(jobs), dtype=np.int64),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": relative_gap},
    )
    if result.x is None:
        raise RuntimeError(f"the mixed-integer program was not solved: {result.message}")
    taken = np.flatnonzero(result.x > 0.5)
    choice[jobs[taken]] = configurations[taken]
    return choice
