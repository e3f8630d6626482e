"""Usage records: from the engine's journal to one settled row per request.

Beside the usual files: `attribution.py` (the envelope that crosses the engine), `candidates.py`
(a record examined) and `settlement.py` (a batch booked). The life of a record is in README.md.
"""
