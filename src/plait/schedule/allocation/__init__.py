"""The configuration program of a round: which task runs in which configuration, and what a device is worth."""

from plait.schedule.allocation.program import Program, Solution
from plait.schedule.allocation.solver import solve

__all__ = ["Program", "Solution", "solve"]
