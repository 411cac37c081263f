"""Memory of a device as a plan: recorded allocations, their lifetimes, a packing, and a pool that serves from it."""
