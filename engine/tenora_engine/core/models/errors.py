"""Why a model folder cannot be served. Raised at start, never later."""

from tenora_engine.protocol.errors import EngineError


class UnsupportedModelError(EngineError):
    """The folder is not a model that this engine computes exactly."""

    code = "unsupported_model"
