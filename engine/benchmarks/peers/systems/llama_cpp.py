"""llama.cpp's own server, built from the sources that `llama-cpp-python` carries.

The package's Python server answers one request at a time; `llama-server` batches continuously.
It takes an adapter for each request, and runs requests with different adapters one after another.
"""

import shutil
import tarfile
from pathlib import Path
from typing import Any

from peers.cells import ADAPTERS
from peers.environments import TORCH, Environment, run
from peers.server import Server, free_port
from peers.systems.base import Peer, Site, adapter_index

VERSION = "0.3.36"
CONVERTER_PACKAGES = (TORCH, "transformers==5.24.0", "sentencepiece", "pyyaml", "cmake<4")
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF",
)  # fmt: skip
GGUF_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
SLOT_TOKENS = 256
"""Room of one request: 128 + 64 tokens and some."""


class LlamaCpp(Peer):
    """As many slots as there are clients; keys and values in float16, which is its default."""

    name = "llama.cpp"
    choices = tuple({"dtype": dtype} for dtype in GGUF_TYPES)

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._environment = Environment(site.work / "llama.cpp")
        self._gguf = site.work / "llama.cpp" / "gguf"

    def install(self) -> None:
        """Build the server, and convert the adapters."""
        recipe = [f"llama-cpp-python=={VERSION}", *CONVERTER_PACKAGES, *CMAKE_OPTIONS]
        self._environment.ensure(recipe, _build)
        for name, folder in self.site.adapters.items():
            target = self._gguf / f"{name}.gguf"
            base = ("--base", self.site.model_dir)
            self._convert("convert_lora_to_gguf.py", target, folder, "f16", *base)

    def launch(self) -> Server:
        """One server; requests that end make room for others at once."""
        kind = GGUF_TYPES[self.dtype]
        model_file = self._gguf / f"{self.site.model_dir.name}-{kind}.gguf"
        self._convert("convert_hf_to_gguf.py", model_file, self.site.model_dir, kind)
        port, slots = free_port(), self.site.concurrency
        self.url = f"http://127.0.0.1:{port}"
        adapters = ",".join(str(self._gguf / f"{name}.gguf") for name in ADAPTERS)
        argv = (
            str(self._environment.folder / "build" / "bin" / "llama-server"),
            "--model", str(model_file), "--host", "127.0.0.1", "--port", str(port),
            "--threads", str(self.site.threads), "--threads-batch", str(self.site.threads),
            "--parallel", str(slots), "--ctx-size", str(slots * SLOT_TOKENS),
            "--no-cache-prompt", "--cache-ram", "0",
            "--lora", adapters,
        )  # fmt: skip
        return Server(argv, {}, self.site.log(self.name))

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        """One named adapter sets all others to 0; an empty list would leave all of them at 1."""
        index = adapter_index(body)
        named = {"id": 0, "scale": 0.0} if index is None else {"id": index, "scale": 1.0}
        return body | {"ignore_eos": True, "lora": [named]}

    async def facts(self) -> dict[str, Any]:
        """As it was built and started."""
        return {
            "dtype": self.dtype,
            "versions": {"llama-cpp-python": VERSION},
            "settings": f"{self.site.concurrency} slots, {' '.join(CMAKE_OPTIONS)}",
        }

    def _convert(
        self, script: str, target: Path, source: Path, kind: str, *more: str | Path
    ) -> None:
        if target.is_file():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        options = ("--outtype", kind, "--outfile", partial, *more)
        run(
            self._environment.python, self._environment.folder / "source" / script, source, *options
        )
        partial.rename(target)


def _build(environment: Environment) -> None:
    environment.create()
    folder = environment.folder
    environment.pip("install", *CONVERTER_PACKAGES)
    package = f"llama-cpp-python=={VERSION}"
    environment.pip("download", "--no-deps", "--no-binary", ":all:", "-d", folder, package)
    (archive,) = folder.glob("llama_cpp_python-*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(folder / "package", filter="data")
    archive.unlink()
    (vendored,) = (folder / "package").glob("*/vendor/llama.cpp")
    vendored.rename(folder / "source")
    shutil.rmtree(folder / "package")
    cmake = folder / "venv" / "bin" / "cmake"
    run(cmake, "-S", folder / "source", "-B", folder / "build", *CMAKE_OPTIONS)
    run(cmake, "--build", folder / "build", "--target", "llama-server", "--parallel")
