"""Domain-free building blocks: clock, ids, money, periods, cursors. Imports no slice."""
