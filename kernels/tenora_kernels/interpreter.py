"""Runs Triton kernels in Triton's interpreter: for tests and trials without a GPU."""

import sys
from typing import Any

import numpy as np
import triton
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from tenora_kernels.errors import BackendUnavailableError

_ready_modules: set[int] = set()


def interpret_kernels() -> None:
    """Interpret every kernel of this process that is imported from now on.

    Triton reads its switch when a kernel is decorated, also for its own library, which may have
    been imported before by another package; so the library's kernels are replaced in place. The
    environment, and with it child processes, stays as it is. Idempotent.

    Raises:
        BackendUnavailableError: kernels of ours were imported before, to be compiled.
    """
    if triton.knobs.runtime.interpret:
        return
    early = [name for name in sys.modules if name.endswith((".triton_ops", ".triton_kernels"))]
    if early:
        raise BackendUnavailableError(f"call interpret_kernels() before importing {early}")
    triton.knobs.runtime.interpret = True
    # one object for each function: the interpreter knows combiners by identity
    replaced: dict[object, Any] = {}
    for module in [m for name, m in sys.modules.items() if name.startswith("triton.language")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                interpreted = interpreter.InterpretedFunction(value.fn)
                setattr(module, name, replaced.setdefault(value.fn, interpreted))
    interpreter.interpreter_builder.create_dot = _dot
    interpreter.InterpretedFunction.__call__ = _call


def _dot(a: Any, b: Any, d: Any, *_options: object) -> Any:
    """The interpreter's product as a GPU adds it: each element alone, in the order of k.

    Its own takes the bits of bfloat16 for integers, and a row's last bit depends on where the row
    lies in the tile.
    """
    dtype = d.data.dtype
    product = np.einsum("...mk,...kn->...mn", _widened(a, dtype), _widened(b, dtype))
    return interpreter.TensorHandle(product + d.data, d.dtype.scalar)


def _call(function: Any, *args: object, **kwargs: object) -> Any:
    """Call a function of a kernel; Triton's own makes the language ready anew in every call."""
    module = id(function.fn.__globals__)
    if module not in _ready_modules:
        interpreter._patch_lang(function.fn)  # noqa: SLF001 - what the replaced one does
        _ready_modules.add(module)
    return function.rewrite()(*args, **kwargs)


def _widened(handle: Any, dtype: Any) -> Any:
    if handle.dtype.scalar.is_bf16():
        return (handle.data.astype(np.uint32) << 16).view(np.float32).astype(dtype)
    return handle.data.astype(dtype)
