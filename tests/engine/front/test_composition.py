"""A replica that can never serve ends with its reason instead of trying for ever."""

import json
import shutil

import pytest

from tenora_engine.front.composition import serve
from tenora_engine.protocol.errors import EngineUnavailableError
from tests.support.front import front_config, short_folder


async def test_a_model_that_the_core_refuses_ends_the_replica_with_the_reason() -> None:
    folder = short_folder()
    config = front_config(folder)
    (config.model_dir / "config.json").write_text(
        json.dumps({"architectures": ["MambaForCausalLM"], "vocab_size": 272})
    )
    with pytest.raises(EngineUnavailableError, match="MambaForCausalLM is not supported"):
        await serve(config)
    shutil.rmtree(folder)
