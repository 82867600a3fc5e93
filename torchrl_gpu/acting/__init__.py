"""Acting: policy wrapper, exploration, robots of a group, and collector."""
