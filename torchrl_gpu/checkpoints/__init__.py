"""Checkpoints: safe files, written whole or not at all."""
