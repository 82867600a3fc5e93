"""Checkpoints: safetensors files, written atomically."""
