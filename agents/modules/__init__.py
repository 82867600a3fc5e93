"""Building blocks of the agents: encoders, networks, distributions, parts of a gradient step."""
