"""The parts by name; each is a process of its own."""

from collections.abc import Callable

import torch

from gpu_check.check_lora import run_lora_checks
from gpu_check.check_ops import OpChecks
from gpu_check.engine_run import EngineRun
from gpu_check.kernel_times import KernelTimes
from gpu_check.records import Recorder
from gpu_check.shapes import Shapes


def _correctness(recorder: Recorder, shapes: Shapes, device: torch.device) -> None:
    OpChecks(recorder, shapes, device).run()
    run_lora_checks(recorder, shapes, device)


def _kernels(recorder: Recorder, shapes: Shapes, device: torch.device) -> None:
    KernelTimes(recorder, shapes, device).run()


def _engine(recorder: Recorder, shapes: Shapes, device: torch.device) -> None:
    EngineRun(recorder, shapes, device).run()


PARTS: dict[str, Callable[[Recorder, Shapes, torch.device], None]] = {
    "correctness": _correctness,
    "kernels": _kernels,
    "engine": _engine,
}
