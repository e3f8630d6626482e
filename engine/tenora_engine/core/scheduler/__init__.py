"""Which sequences run in the next step. Policy only: no torch, no clock of its own."""
