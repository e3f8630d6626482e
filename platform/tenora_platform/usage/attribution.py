"""The envelope that travels through the engine: who a request's usage belongs to.

It is made at admission, journalled by the engine with the token counts, never read there, and
opened again at settlement. So a record can be settled even if everything it names is gone.
"""

from uuid import UUID

import msgspec


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """Ids, names and choices fixed at admission. Never text of a prompt.

    A new field needs a default: journals may hold envelopes of the previous version.
    """

    tenant_id: UUID
    project_id: UUID
    api_key_id: UUID
    model: str
    """As the client called it: name, `name@3`, `name:prod` or the base model's id."""
    base_model: str
    adapter_id: UUID | None = None
    adapter_revision: int | None = None
    price_version_id: UUID
    endpoint: str
    streamed: bool
    time_zone: str
    """The tenant's IANA zone: it decides the period that `completed_at` lies in."""

    def encode(self) -> bytes:
        """As bytes for `GenerateRequest.attribution`."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, envelope: bytes) -> "Attribution":
        """What `encode` made. Raises msgspec.DecodeError for anything else."""
        return msgspec.msgpack.decode(envelope, type=cls)
