"""Acting: policy wrapper, its interface, exploration and collector."""
