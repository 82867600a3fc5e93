"""Comparison of runs: a table in the terminal, and a page."""
