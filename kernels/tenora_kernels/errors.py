"""Errors of the kernels.

KernelError
├── KernelInputError        a tensor or argument breaks an op's contract
│   ├── ShapeError
│   ├── DtypeError
│   └── UnsupportedRopeTypeError
├── PoolFullError           a LoRA pool has too few free pages for an adapter
└── BackendUnavailableError the chosen backend cannot run on this machine
"""


class KernelError(Exception):
    """Root of everything this package raises on purpose. `code` is stable."""

    code = "kernel_error"


class KernelInputError(KernelError, ValueError):
    """An argument breaks the contract of an op; the message says which and how to mend it."""

    code = "kernel_input"


class ShapeError(KernelInputError):
    """Sizes that do not fit together."""

    code = "kernel_shape"


class DtypeError(KernelInputError):
    """A dtype that the op does not take, or two that must agree and do not."""

    code = "kernel_dtype"


class UnsupportedRopeTypeError(KernelInputError):
    """The base model's rope scaling is of a type that no table builder knows."""

    code = "unsupported_rope_type"


class PoolFullError(KernelError, RuntimeError):
    """A LoRA pool has no room for one more adapter; unload one, or make the pool larger."""

    code = "pool_full"


class BackendUnavailableError(KernelError, RuntimeError):
    """The chosen backend cannot run here."""

    code = "backend_unavailable"
