"""Storage of transitions on the device: replay, prioritized replay, and rollouts."""
