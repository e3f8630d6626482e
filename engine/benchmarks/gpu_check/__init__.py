"""`make gpu-check`: does Tenora's GPU path compute the right numbers here, and how fast.

Needs Python, torch and triton only. Nothing here or below may import another library.
"""
