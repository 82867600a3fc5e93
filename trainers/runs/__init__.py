"""What a run leaves: folders, loggers, summary, identity of checkpoints, policy files."""
