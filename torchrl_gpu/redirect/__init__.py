"""Redirection of code that hard-codes `cuda` to the accelerator that this machine has."""
