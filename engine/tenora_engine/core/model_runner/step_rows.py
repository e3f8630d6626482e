"""What the scheduler chose, as the rows that a runner computes."""

from collections.abc import Sequence as SequenceOf

from tenora_engine.core.model_runner.forward_batch import BatchRow
from tenora_engine.core.scheduler.scheduler import ScheduledSequence


def rows_of_step(
    scheduled: SequenceOf[ScheduledSequence], adapter_index: dict[str, int]
) -> list[BatchRow]:
    """The rows of a scheduled step, in its order."""
    rows = []
    for item in scheduled:
        sequence = item.sequence
        start = sequence.num_computed_tokens
        digest = sequence.request.adapter_digest
        rows.append(
            BatchRow(
                token_ids=sequence.token_ids[start : start + item.num_tokens],
                start=start,
                block_table=sequence.block_table,
                adapter_index=-1 if digest is None else adapter_index[digest],
                num_logits=1 if item.samples else 0,
            )
        )
    return rows
