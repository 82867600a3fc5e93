"""Collecting by other processes, on this machine or on others, which feed the learner."""
