"""The Tenora control plane: tenants, keys, quotas, money and the HTTP surface. Never torch."""
