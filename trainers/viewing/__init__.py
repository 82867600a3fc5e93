"""A policy live in the browser: the page, what it plays, and the process beside a training."""
