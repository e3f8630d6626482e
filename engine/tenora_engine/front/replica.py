"""What a replica is, from the core's start on: facts, tokenizer, identity, cache roots."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from tenora_engine.config import EngineConfig
from tenora_engine.core.messages import CoreReady
from tenora_engine.front.cache_root import CacheRoots
from tenora_engine.front.model_digest import model_digest
from tenora_engine.protocol.messages import (
    EngineInfo,
    ExecutionIdentity,
    GenerateRequest,
)
from tenora_engine.text.prompt_encoder import PromptEncoder
from tenora_engine.text.token_bytes import TokenBytes
from tenora_engine.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelFiles:
    """What the front reads from the model folder, once."""

    tokenizer: Tokenizer
    token_bytes: TokenBytes
    model_digest: str


def load_model_files(config: EngineConfig) -> ModelFiles:
    """Read tokenizer and digests; takes seconds for a large model, so call it on a thread.

    Raises:
        OSError, ValueError: the folder is no model folder that can be served.
    """
    tokenizer = Tokenizer(config.model_dir)
    return ModelFiles(
        tokenizer=tokenizer,
        token_bytes=tokenizer.token_bytes(),
        model_digest=model_digest(config.model_dir),
    )


class Replica:
    """The facts of one life of the core."""

    def __init__(self, config: EngineConfig, files: ModelFiles, ready: CoreReady) -> None:
        self._config = config
        self._ready = ready
        self.files = files
        self.encoder = PromptEncoder.load(
            config.model_dir, files.tokenizer, context_length=ready.context_length
        )
        self.cache_roots = CacheRoots(
            model_digest=files.model_digest,
            kv_dtype=ready.kv_dtype,
            block_size=ready.block_size,
        )
        self.info = EngineInfo(
            replica_id=config.replica_id,
            engine_version=engine_version(),
            base_model=config.base_model,
            model_digest=files.model_digest,
            context_length=ready.context_length,
            vocab_size=ready.vocab_size,
            max_lora_rank=ready.max_lora_rank,
            kernel_backend=ready.kernel_backend,
            weight_dtype=ready.weight_dtype,
        )
        self.stop_token_ids = tuple(sorted(files.tokenizer.eos_token_ids))

    @property
    def max_total_tokens(self) -> int:
        """Prompt and output of one request together: the window, or the KV pool if smaller."""
        return min(self._ready.context_length, self._ready.num_blocks * self._ready.block_size)

    def identity(self, request: GenerateRequest) -> ExecutionIdentity:
        """Everything that decides what `request` computes, apart from its prompt."""
        return ExecutionIdentity(
            model_digest=self.files.model_digest,
            tokenizer_digest=self.files.tokenizer.digest,
            template_version=request.template_version,
            adapter_digest=request.adapter.digest if request.adapter is not None else None,
            engine_version=self.info.engine_version,
            kernel_backend=self._ready.kernel_backend,
            weight_dtype=self._ready.weight_dtype,
            kv_dtype=self._ready.kv_dtype,
            attention_backend=self._ready.attention_backend,
            topology="one-device",
            prefix_cache="scoped" if self._config.prefix_cache else "off",
            sampling=request.sampling,
        )


def engine_version() -> str:
    """The installed release."""
    try:
        return version("tenora")
    except PackageNotFoundError:
        return "unreleased"
