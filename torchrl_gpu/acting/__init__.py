"""Acting: the policy wrapper, exploration, robots of a group, and the collector."""
