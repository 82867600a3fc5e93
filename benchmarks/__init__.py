"""Benchmarks against other programs, one command each: `python -m benchmarks.NAME`."""
