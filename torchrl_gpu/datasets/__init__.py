"""Datasets of episodes in the formats of other libraries."""
