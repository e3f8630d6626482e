"""Why an upload ends without a callable adapter."""

from typing import Any

from tenora_platform.errors import UnprocessableContent


class AdapterRejected(UnprocessableContent):
    """The revision is stored as rejected. The body lists all problems at once.

    `details` holds `adapter`, `revision`, `problems` and `warnings`.
    """

    code = "adapter_rejected"

    def __init__(self, name: str, revision: int, report: dict[str, Any]) -> None:
        problems = report.get("problems", [])
        count = f"{len(problems)} problems" if len(problems) != 1 else "1 problem"
        super().__init__(
            f"The adapter was rejected for {count}. Correct 'problems' and upload again.",
            details={
                "adapter": name,
                "revision": revision,
                "problems": problems,
                "warnings": report.get("warnings", []),
            },
        )
