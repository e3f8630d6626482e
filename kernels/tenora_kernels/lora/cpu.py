"""Batched LoRA with torch's CPU products; README.md has the layout and the rule of choice.

Few rows of many adapters meet all columns in one product, and a mask leaves each row its own.
Long runs of one adapter meet that adapter's columns only. Both give a row the same bits.
"""

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from tenora_kernels.errors import DtypeError, ShapeError
from tenora_kernels.lora.layout import Columns
from tenora_kernels.lora.plan import ROW_MULTIPLE, DensePart, LoraPlan, Run
from tenora_kernels.lora.stack import MIN_SHRINK_COLUMNS, LoraStack


def lora_add_(y: Tensor, x: Tensor, stack: LoraStack, token_adapter: Tensor | LoraPlan) -> None:
    """Add each row's adapter to y.

    Semantics: y[t, slice s] += scaling * (x[t] @ A_s^T) @ B_s^T, A and B of the row's adapter.
    Both products and the scaling are float32. A row's result depends on its own x, y and
    adapter only, bit for bit; a non-finite adapter reaches no row but its own.
    Args: y [T, sum(slice_sizes)]; x [T, in]; token_adapter [T] int64, -1 for none, or a plan.
    Mutates: y, in rows that have an adapter.
    Raises:
        ShapeError, DtypeError: tensors that do not fit the stack.
    Reference: `reference.lora_add_`; Punica (arXiv:2310.18547), S-LoRA (arXiv:2311.03285).
    """
    _check(y, x, stack)
    if not isinstance(token_adapter, LoraPlan):
        token_adapter = LoraPlan(token_adapter, stack.num_adapters)
    if token_adapter.is_base_only or stack.columns.layout.num_columns == 0:
        return
    plan = token_adapter.for_stack(stack)
    wide_x = x.to(stack.columns.lora_a.dtype)
    if plan.dense is not None:
        _add_dense(y, wide_x, stack, plan.dense)
    for run in plan.runs:
        _add_run(y, wide_x, stack, run)


def _add_dense(y: Tensor, x: Tensor, stack: LoraStack, part: DensePart) -> None:
    layout = stack.columns.layout
    low_rank = _shrink(_padded(x[part.rows]), stack, Columns(0, layout.num_columns))
    low_rank.mul_(stack.columns.scaling).masked_fill_(part.hidden, 0)
    for position, output in enumerate(y.split_with_sizes(stack.slice_sizes, dim=1)):
        for columns in layout.groups[position]:
            factor = low_rank[:, columns.start : columns.end]
            _add_product(output, part.rows, factor, _rows_of_b(stack, position, columns))


def _add_run(y: Tensor, x: Tensor, stack: LoraStack, run: Run) -> None:
    rows = slice(run.start, run.end)
    own_x = _padded(x[rows])
    for position, output in enumerate(y.split_with_sizes(stack.slice_sizes, dim=1)):
        columns = stack.columns.layout.by_adapter[run.adapter][position]
        if columns.width:
            factor = _shrink(own_x, stack, columns)
            factor.mul_(stack.columns.scaling[columns.start : columns.end])
            _add_product(output, rows, factor, _rows_of_b(stack, position, columns))


def _shrink(x: Tensor, stack: LoraStack, columns: Columns) -> Tensor:
    """x A^T for some columns: [rows, columns.width], a view of a product of 16 or more."""
    end = max(columns.end, columns.start + MIN_SHRINK_COLUMNS)
    product = x @ stack.columns.lora_a[columns.start : end].T
    return product[:, : columns.width]


def _rows_of_b(stack: LoraStack, position: int, columns: Columns) -> Tensor:
    offset = stack.columns.layout.slices[position].start
    return stack.columns.lora_b[position][columns.start - offset : columns.end - offset]


def _add_product(output: Tensor, rows: slice | Tensor, factor: Tensor, lora_b: Tensor) -> None:
    """Add factor B to some rows of one slice's output; rows beyond them in `factor` are padding."""
    if isinstance(rows, Tensor):
        delta = (factor @ lora_b)[: rows.shape[0]]
        output.index_copy_(0, rows, (output.index_select(0, rows) + delta).to(output.dtype))
        return
    target = output[rows]
    if target.shape[0] == factor.shape[0] and target.dtype == factor.dtype:
        target.addmm_(factor, lora_b)
    else:
        target.add_((factor @ lora_b)[: target.shape[0]])


def _padded(x: Tensor) -> Tensor:
    missing = -x.shape[0] % ROW_MULTIPLE
    return F.pad(x, (0, 0, 0, missing)) if missing else x


def _check(y: Tensor, x: Tensor, stack: LoraStack) -> None:
    expected_y, expected_x = (x.shape[0], sum(stack.slice_sizes)), (y.shape[0], stack.in_features)
    if y.shape != expected_y or x.shape != expected_x:
        raise ShapeError(
            f"y is {tuple(y.shape)} and x {tuple(x.shape)}; the stack takes "
            f"[T, {sum(stack.slice_sizes)}] and [T, {stack.in_features}]"
        )
    if not x.dtype == y.dtype == stack.dtype:
        raise DtypeError(
            f"x is {x.dtype}, y {y.dtype} and the stack {stack.dtype}; they must agree"
        )
