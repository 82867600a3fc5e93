"""A policy live in the browser: the page, its player, and the process beside a training."""
