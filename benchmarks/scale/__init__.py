"""Measurement of runs of several processes."""
