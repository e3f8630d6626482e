"""Tenants, their projects and API keys, and the operators who administer them.

Beside the usual files: `api_keys.py` and `operators.py` are the service's other two subjects, and
`provisioning.py` makes a tenant that can work in one call.
"""
