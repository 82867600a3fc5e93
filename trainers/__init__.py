"""The training loop, the command line and what they show."""
