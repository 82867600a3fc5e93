"""Run folders, loggers, versions, policy files, and models of Stable-Baselines3."""
