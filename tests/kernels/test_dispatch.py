"""The backend is chosen once, by device and setting."""

import pytest

from tenora_kernels import dispatch
from tenora_kernels.errors import BackendUnavailableError, KernelError
from tenora_kernels.native import library


def test_auto_takes_the_fast_path_of_the_device() -> None:
    assert dispatch.choose_backend("cpu") == ("native" if library.is_available() else "cpu")
    assert dispatch.choose_backend("cuda") == "triton"
    assert dispatch.choose_backend("meta") == "reference"


def test_named_backend_is_taken_as_it_is() -> None:
    assert dispatch.choose_backend("cpu", "reference") == "reference"


def test_unknown_backend_is_refused_with_the_choices() -> None:
    with pytest.raises(BackendUnavailableError, match=r"auto, reference, cpu") as caught:
        dispatch.choose_backend("cpu", "tritn")
    assert isinstance(caught.value, KernelError)


def test_use_backend_binds_every_op() -> None:
    op = dispatch.Op(lambda: "slow", lambda: "fast")
    only_reference = dispatch.Op(lambda: "slow")
    assert (op(), only_reference()) == ("fast", "slow")
    dispatch.use_backend("reference")
    try:
        assert (op(), dispatch.active_backend()) == ("slow", "reference")
    finally:
        dispatch.use_backend("cpu")
    assert (op(), dispatch.active_backend()) == ("fast", "cpu")
