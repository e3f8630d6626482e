"""One file per system that is measured; `create_systems` makes them by name."""

from collections.abc import Callable, Mapping, Sequence

from peers.systems.base import Site, System
from peers.systems.llama_cpp import LlamaCpp
from peers.systems.peft_batches import PeftBatches
from peers.systems.tenora import Tenora
from peers.systems.tenora_engine import TenoraEngine
from peers.systems.vllm import VllmAdapters, VllmBase

SYSTEMS: Mapping[str, Callable[[Site], System]] = {
    "tenora": Tenora,
    "tenora-engine": TenoraEngine,
    "vllm-adapters": VllmAdapters,
    "vllm": VllmBase,
    "peft": PeftBatches,
    "llama.cpp": LlamaCpp,
}


def create_systems(names: Sequence[str], site: Site) -> list[System]:
    """The named systems, in that order."""
    return [SYSTEMS[name](site) for name in names]
