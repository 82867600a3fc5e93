"""Devices: accelerator capabilities, host-device transfers, and random number generators."""
