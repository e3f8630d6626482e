"""The GPU's core run by Triton's interpreter, in a process of its own: backends are global.

    python -m tests.engine.core.gpu.in_interpreter TASK.json ANSWERS.json

A task names a model folder, settings and waves of requests; each wave runs until the core is
idle, before the next one is added. Then come probes, and the purge of what base requests left.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from tenora_engine.core.messages import ProbeAdapter, PurgeRoots
from tenora_kernels.interpreter import interpret_kernels
from tests.support.core_driver import CoreDriver, add, engine_config


def run_task(task: dict[str, Any]) -> dict[str, Any]:
    """Tokens of every request, and what the core said of itself."""
    config = engine_config(Path(task["folder"]), Path(task["model_dir"]), **task["settings"])
    driver = CoreDriver(config)
    tokens: dict[str, list[int]] = {}
    try:
        for wave in task["waves"]:
            tokens |= driver.run(*[add(**request) for request in wave])
        probes = [probe(driver, **call) for call in task.get("probes", ())]
        purged = driver.core.handle(PurgeRoots(call_id=1, cache_roots=(add("x", [5]).cache_root,)))
    finally:
        driver.close()
    return {
        "tokens": tokens,
        "probes": probes,
        "num_zeroed": purged.purge.num_blocks_zeroed if purged and purged.purge else None,
        "kernel_backend": driver.ready.kernel_backend,
        "attention_backend": driver.ready.attention_backend,
        "preemptions": sum(output.num_preemptions for output in driver.last.values()),
        "free_blocks": driver.core.stats().num_free_blocks + driver.core.stats().num_cached_blocks,
        "blocks": driver.core.stats().num_blocks,
    }


def probe(driver: CoreDriver, digest: str, prompts: list[list[int]]) -> list[float]:
    """Largest difference of a logit and share of changed tokens, by the core's own probe."""
    call = ProbeAdapter(call_id=2, digest=digest, prompts=tuple(tuple(ids) for ids in prompts))
    driver.core.handle(call)
    while (reply := driver.core.advance_probe()) is None:
        time.sleep(0.001)  # the adapter is on its way
    assert reply.probe is not None, reply.error
    return [reply.probe.max_logit_delta, reply.probe.changed_token_share]


def main() -> int:
    """Run every task of the file. Returns the exit status."""
    interpret_kernels()
    tasks = json.loads(Path(sys.argv[1]).read_text())
    answers = {name: run_task(task) for name, task in tasks.items()}
    Path(sys.argv[2]).write_text(json.dumps(answers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
