"""Execution of acting and of the gradient step: precision, compilation, captured graphs."""
