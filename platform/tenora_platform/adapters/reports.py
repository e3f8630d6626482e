"""What the engine found out about an upload, as the registry stores and shows it."""

import math
from typing import Any

import msgspec

from tenora_engine.protocol.messages import AdapterProblem, AdapterReport, ProbeReport


def inspection_findings(report: AdapterReport) -> dict[str, Any]:
    """The stored form of an inspection: all problems and warnings, and what was measured."""
    findings = msgspec.to_builtins(report)
    del findings["ref"]
    return dict(findings)


def probe_findings(probe: ProbeReport) -> dict[str, Any]:
    """The stored form of a probe. A delta that is no number is null."""
    delta = probe.max_logit_delta
    return {
        "probe": {
            "finite": probe.finite,
            "max_logit_delta": delta if math.isfinite(delta) else None,
            "changed_token_share": probe.changed_token_share,
        }
    }


def probe_problems(probe: ProbeReport) -> list[AdapterProblem]:
    """Why an adapter that loads must still not be served; empty if it may."""
    if not probe.finite or not math.isfinite(probe.max_logit_delta):
        message = (
            "With this adapter the model computes values that are not finite. Check the training "
            "run for divergence and the file for NaN, infinity and overflow."
        )
        return [AdapterProblem(code="non_finite", message=message)]
    if probe.max_logit_delta == 0:
        message = (
            "The adapter changes nothing on the probe prompts. Check that lora_B was trained and "
            "that the file was saved after training."
        )
        return [AdapterProblem(code="no_effect", message=message)]
    return []
