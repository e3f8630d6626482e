"""`tenora up`: a whole installation on one machine, as children of one process.

What lives here: the data folder and its lock, the embedded PostgreSQL and Redis, the supervision
of all roles, the demo tenants, and the screen. What does not: what a role does once it runs.
Only `run.py` puts the pieces together.
"""
