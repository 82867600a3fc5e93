"""Transitions on the device: replay, prioritized replay, and rollouts."""
