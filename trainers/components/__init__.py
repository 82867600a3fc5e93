"""Classes that settings choose, and the pairing of agents and environments."""
