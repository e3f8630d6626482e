"""Adapter residency: disk, host and device, moved off the step loop."""
