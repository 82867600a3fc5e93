"""A policy live in the browser: the page and its player."""
