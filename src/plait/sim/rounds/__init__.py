"""Round-based simulators: the neutral setting in which policies are compared, and Gavel's own conventions."""
