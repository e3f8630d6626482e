"""The front of a replica: protocol, text work, usage journal and the core's supervisor."""
