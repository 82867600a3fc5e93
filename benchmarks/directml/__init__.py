"""Round trips to the CPU that the agents would make on a DirectML device."""
