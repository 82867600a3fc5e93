"""Modes of the program: train, evaluate, film, record, export and tune."""
