"""The digest of the served weights and of what says how to read them."""

import hashlib
from pathlib import Path


def model_digest(folder: Path) -> str:
    """SHA-256 (hex) over `config.json` and all safetensors files. Reads every byte: use a thread.

    Names and lengths are part of it, so two different folders never hash alike.
    """
    digest = hashlib.sha256(b"tenora-model-v1")
    for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        digest.update(b"%d:%s%d:" % (len(path.name), path.name.encode(), path.stat().st_size))
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
