"""Devices: the accelerator record, transfers, and random numbers."""
