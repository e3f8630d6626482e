"""Admission: what a tenant, project or API key may use, reserved before the engine works.

`limits.py` names limits, `service.py` speaks the verbs
(reserve, settle, release, check, project), `redis_store.py` and `scripts/` hold the state.
Read README.md first. Nothing is imported here, so that `limits` stays free to import anywhere.
"""
