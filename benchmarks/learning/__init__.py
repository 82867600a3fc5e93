"""Learning benchmark: score and speed of every agent on known tasks, and Stable-Baselines3."""
