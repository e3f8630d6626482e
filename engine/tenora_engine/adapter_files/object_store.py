"""Where uploads and canonical files lie: keys and opening, the same for every kind of store."""

from obstore.store import ObjectStore, from_url

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"


def open_store(url: str) -> ObjectStore:
    """The store at `url`; a local folder (`file://`) is made if it is missing."""
    return from_url(url, mkdir=True) if url.startswith("file:") else from_url(url)


def canonical_key(digest: str) -> str:
    """Key of the canonical file with this digest."""
    return f"adapters/{digest}.safetensors"
