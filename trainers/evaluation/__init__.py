"""Evaluations and films of policies."""
