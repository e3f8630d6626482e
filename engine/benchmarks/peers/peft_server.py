"""A minimal server over peft's mixed-batch `generate`; runs in the environment of that peer.

One batch at a time: it takes all requests that wait (up to `--max-batch`), pads them on the left,
generates for the longest, and answers all when the batch is done. A batch without adapters runs
with adapters disabled, so it costs what plain transformers cost. `POST /v1/completions` answers
as one event of a stream with `usage`; counts are of tokens that were really made.
"""

import argparse
import json
import queue
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

GATHER_S = 0.01
"""How long the first request of a batch waits for others that come at the same moment."""


@dataclass
class Job:
    """One request, and where its answer goes."""

    adapter: str
    token_ids: list[int]
    max_tokens: int
    done: threading.Event = field(default_factory=threading.Event)
    output: list[int] = field(default_factory=list)
    error: str | None = None


class Batcher:
    """Owns the model. `run` never returns; `submit` may be called from any thread."""

    def __init__(self, model: Any, max_batch: int) -> None:
        self._model = model
        self._max_batch = max_batch
        self._waiting: queue.Queue[Job] = queue.Queue()

    def submit(self, job: Job) -> None:
        """Returns when the job is done."""
        self._waiting.put(job)
        job.done.wait()

    def run(self) -> None:
        """Gather, generate, answer, for ever."""
        while True:
            jobs = self._gather()
            try:
                self._generate(jobs)
            except Exception as error:  # noqa: BLE001 - the client is told, and the next one served
                for job in jobs:
                    job.error = repr(error)
            for job in jobs:
                job.done.set()

    def _gather(self) -> list[Job]:
        jobs = [self._waiting.get()]
        give_up_at = time.monotonic() + GATHER_S
        while len(jobs) < self._max_batch:
            try:
                jobs.append(self._waiting.get(timeout=max(0.0, give_up_at - time.monotonic())))
            except queue.Empty:
                break
        return jobs

    @torch.inference_mode()
    def _generate(self, jobs: list[Job]) -> None:
        length = max(len(job.token_ids) for job in jobs)
        new = max(job.max_tokens for job in jobs)
        ids = torch.zeros(len(jobs), length, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, job in enumerate(jobs):
            ids[row, length - len(job.token_ids) :] = torch.tensor(job.token_ids)
            mask[row, length - len(job.token_ids) :] = 1
        options = {
            "input_ids": ids, "attention_mask": mask, "do_sample": False, "pad_token_id": 0,
            "max_new_tokens": new, "min_new_tokens": new,
        }  # fmt: skip
        names = [job.adapter for job in jobs]
        if set(names) == {"__base__"}:
            with self._model.disable_adapter():
                output = self._model.generate(**options)
        else:
            output = self._model.generate(**options, adapter_names=names)
        for row, job in enumerate(jobs):
            job.output = output[row, length:][: job.max_tokens].tolist()


def make_handler(batcher: Batcher, base_name: str) -> type[BaseHTTPRequestHandler]:
    """The HTTP side: as little as the load generator needs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, b"ok")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            adapter = "__base__" if body["model"] == base_name else body["model"]
            job = Job(adapter, body["prompt"], body["max_tokens"])
            batcher.submit(job)
            if job.error is not None:
                self._answer(500, job.error.encode())
                return
            usage = {"prompt_tokens": len(job.token_ids), "completion_tokens": len(job.output)}
            chunk = json.dumps({"choices": [{"token_ids": job.output}]})
            end = json.dumps({"choices": [], "usage": usage}, separators=(",", ":"))
            self._answer(200, f"data: {chunk}\n\ndata: {end}\n\ndata: [DONE]\n\n".encode())

        def _answer(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - as above
            """Nothing: a line per request would only cost time."""

    return Handler


def load_model(model_dir: Path, adapters: dict[str, str], dtype: torch.dtype) -> Any:
    """The base model with every adapter beside it."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)
    peft: Any = None
    for name, folder in adapters.items():
        if peft is None:
            peft = PeftModel.from_pretrained(model, folder, adapter_name=name)
        else:
            peft.load_adapter(folder, adapter_name=name)
    return peft.to(dtype).eval()


def main() -> None:
    """Load, then serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-batch", type=int, required=True)
    parser.add_argument("--base-name", required=True)
    parser.add_argument("--adapters", nargs="+", required=True, metavar="NAME=FOLDER")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    adapters = dict(entry.split("=", 1) for entry in arguments.adapters)
    model = load_model(arguments.model_dir, adapters, getattr(torch, arguments.dtype))
    batcher = Batcher(model, arguments.max_batch)
    threading.Thread(target=batcher.run, daemon=True).start()
    handler = make_handler(batcher, arguments.base_name)
    ThreadingHTTPServer(("127.0.0.1", arguments.port), handler).serve_forever()


if __name__ == "__main__":
    main()
