"""The contract between the platform and an engine: torch-free structs, errors and clients.

The one part of the engine that the platform imports. Money, prices, quotas and tenants' names
never appear here; token counts come from here and from nowhere else.
"""
