"""Measures how well and how fast each agent learns, beside Stable-Baselines3."""
