"""Examination of a machine: devices, versions, missing installations, and measured speed."""
