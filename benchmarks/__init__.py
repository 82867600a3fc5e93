"""Measurements beside peers, in one run each: `python -m benchmarks.NAME`."""
