"""Who is calling: API keys, operators, and the scope that alone can name a tenant.

Not a slice with a public address of its own, so its files are named after what they decide.
"""
