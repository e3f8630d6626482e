"""`python -m tenora_kernels.native`: build and check the CPU kernels now, say where they are."""

import sys

from tenora_kernels.errors import BackendUnavailableError
from tenora_kernels.native.build import built_library


def main() -> int:
    """Returns 0 even without a compiler: the slower kernels then serve."""
    try:
        print(f"CPU kernels: {built_library()}")  # noqa: T201 - the command's answer
    except BackendUnavailableError as error:
        print(f"CPU kernels: torch's products will be used; {error}")  # noqa: T201 - same
    return 0


if __name__ == "__main__":
    sys.exit(main())
