"""Environments: base class, adapter for any TorchRL environment, specs, and action tables."""
