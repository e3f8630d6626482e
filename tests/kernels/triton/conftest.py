"""Triton kernels run in Triton's interpreter here, whatever the other tests do.

Kernels of ours may be imported from this folder only. Call functions of `triton_ops` directly:
`use_backend` binds the whole process.
"""

from importlib.util import find_spec

if find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]
else:
    from tenora_kernels.interpreter import interpret_kernels

    interpret_kernels()
