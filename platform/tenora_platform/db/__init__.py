"""The database: declarative base, sessions that enforce tenancy, registry, migrations."""
