"""Measured bandwidth, latency and speed."""
