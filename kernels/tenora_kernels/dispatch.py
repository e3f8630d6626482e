"""Which implementation of an op runs: chosen once per process, by device and setting.

Every op has a `reference` twin, plain enough to be the specification, and fast twins of the
same signature. This module knows names of backends and nothing about any op.

`cpu` is torch alone; `native` is our C++ on the CPU; `triton` is a GPU, or Triton's interpreter.
The last two need more than torch, so their modules are named here and imported when bound.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Generic, Literal, ParamSpec, TypeVar, cast, get_args

import torch

from tenora_kernels.errors import BackendUnavailableError
from tenora_kernels.native import library

P = ParamSpec("P")
R = TypeVar("R")

Backend = Literal["reference", "cpu", "native", "triton"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)
# by type of device, where the native library cannot be built; any other runs the specification
FASTEST: dict[str, Backend] = {"cpu": "cpu", "cuda": "triton"}

_active: Backend = "cpu"
_ops: list["Op[..., object]"] = []


class Op(Generic[P, R]):
    """A public op: calls the implementation of the active backend.

    `native` and `triton` are given as "package.module:function". An op without an implementation
    for the active backend runs the next plainer one: native, cpu, reference; or triton, reference.
    """

    def __init__(
        self,
        reference: Callable[P, R],
        cpu: Callable[P, R] | None = None,
        *,
        native: str | None = None,
        triton: str | None = None,
    ) -> None:
        plain = cpu or reference
        self._by_backend: dict[Backend, Callable[P, R] | str] = {
            "reference": reference,
            "cpu": plain,
            "native": native or plain,
            "triton": triton or reference,
        }
        self.__name__ = reference.__name__
        self.__doc__ = plain.__doc__
        self.bind(_active)
        _ops.append(cast("Op[..., object]", self))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(*args, **kwargs)

    def bind(self, backend: Backend) -> None:
        """Make `backend` the one that later calls run."""
        self._run = self.implementation(backend)

    def implementation(self, backend: Backend) -> Callable[P, R]:
        """Return what runs under `backend`, importing it where it is only named."""
        found = self._by_backend[backend]
        if not isinstance(found, str):
            return found
        module, _, name = found.partition(":")
        return cast("Callable[P, R]", getattr(import_module(module), name))


def choose_backend(device: torch.device | str = "cpu", setting: str = "auto") -> Backend:
    """The backend that `setting` means on `device`.

    `auto` takes the fastest that the device has; a named backend is taken as it is.

    Raises:
        BackendUnavailableError: an unknown name, or `native` where it cannot be built.
    """
    if setting not in (*BACKENDS, "auto"):
        raise BackendUnavailableError(
            f"kernel backend {setting!r} is unknown; choose one of auto, {', '.join(BACKENDS)}"
        )
    if setting == "native":
        library.library()
    if setting != "auto":
        return cast("Backend", setting)
    kind = torch.device(device).type
    if kind == "cpu" and library.is_available():
        return "native"
    return FASTEST.get(kind, "reference")


def use_backend(backend: Backend) -> None:
    """Bind every op to `backend`. Call it once, before the first weights are packed."""
    global _active  # noqa: PLW0603 - the choice is one per process by design
    _active = backend
    for op in _ops:
        op.bind(backend)


def active_backend() -> Backend:
    """The backend that ops run on; part of a replica's execution identity."""
    return _active
