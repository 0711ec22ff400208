"""Equal forms, in plain StableHLO, of two operations that XLA:CPU of jaxlib 0.10.2 cannot run.

Each rewrite is called with the insertion point before the operation, replaces the uses of its results, and gives a
short line that says what was done. The caller erases the operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo
from jaxlib.mlir.dialects import stablehlo as hlo


class NoEqualForm(Exception):
    """Raised for a form of the operation that has no rewrite; the message names it."""


def scan_to_while(operation: ir.Operation) -> str:
    """`chlo.scan` as a loop over the scanned dimension: exact for any body, associative or not.

    Of a tree of partial results, as a TPU may compute it, and this running one, neither is the truer rounding.
    """
    scan = operation.opview
    assert isinstance(scan, chlo.ScanOp)
    body = operation.regions[0].blocks[0]
    inputs, inits = list(scan.inputs), list(scan.inits)
    parts = [_tensor(value.type) for value in list(operation.results)[: len(operation.results) - len(inits)]]
    dimension = ir.IntegerAttr(scan.dimension).value
    length = _tensor(inputs[0].type).shape[dimension]
    reverse = scan.is_reverse is not None and ir.BoolAttr(scan.is_reverse).value
    reducer = ", ".join(o.operation.name.partition(".")[2] for o in list(body.operations)[:-1][:1]) or "copy"

    start = [_integer(0), *inits, *(_zeros(part) for part in parts)]
    types = [value.type for value in start]
    loop = hlo.WhileOp(types, start)
    condition = loop.operation.regions[0].blocks.append(*types)
    with ir.InsertionPoint(condition):
        hlo.return_([_compare("LT", condition.arguments[0], _integer(length))])

    step_block = loop.operation.regions[1].blocks.append(*types)
    with ir.InsertionPoint(step_block):
        step, *state = step_block.arguments
        carried, outputs = state[: len(inits)], state[len(inits) :]
        index = hlo.subtract(_integer(length - 1), step) if reverse else step
        slices = [_read(value, dimension, index) for value in inputs]
        for argument, value in zip(body.arguments, [*slices, *carried], strict=True):
            argument.replace_all_uses_with(value)
        next_step = hlo.add(step, _integer(1)).owner
        *steps, terminator = [o.operation for o in body.operations]
        for moved in steps:
            moved.move_before(next_step)
        given = list(terminator.operands)
        written = [
            _write(whole, part, dimension, index) for whole, part in zip(outputs, given[: len(outputs)], strict=True)
        ]
        hlo.return_([next_step.results[0], *given[len(outputs) :], *written])

    _, *final = loop.operation.results
    for old, new in zip(operation.results, [*final[len(inits) :], *final[: len(inits)]], strict=True):
        old.replace_all_uses_with(new)
    return f"chlo.scan ({reducer}) -> stablehlo.while"


def ragged_dot_to_dot_general(operation: ir.Operation) -> str:
    """`chlo.ragged_dot` of `[m, k], [g, k, n], [g] -> [m, n]` as one product with every group's matrix, then a choice.

    Of the g products of a row at most one is kept and the others are replaced by zero, so nothing is rounded twice.
    """
    lhs, rhs, sizes = operation.operands
    numbers = chlo.RaggedDotDimensionNumbers(operation.attributes["ragged_dot_dimension_numbers"])
    if (
        numbers.lhs_batching_dimensions
        or numbers.rhs_batching_dimensions
        or list(numbers.lhs_contracting_dimensions) != [1]
        or list(numbers.lhs_ragged_dimensions) != [0]
        or list(numbers.rhs_group_dimensions) != [0]
    ):
        raise NoEqualForm(f"ragged-dot in the form {numbers}")
    result = _tensor(operation.results[0].type)
    groups = _tensor(rhs.type).shape[0]
    rows, columns = result.shape
    (contracting,) = numbers.rhs_contracting_dimensions

    dimensions = hlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=[],
        rhs_batching_dimensions=[],
        lhs_contracting_dimensions=[1],
        rhs_contracting_dimensions=[contracting],
    )
    every = hlo.dot_general(_like(result, [rows, groups, columns]), lhs, rhs, dimensions)
    cube = _tensor(every.type)
    chosen = _broadcast(_row_is_in_group(sizes, rows, groups), [rows, groups, columns], [0, 1])
    kept = hlo.select(chosen, every, _zeros(cube))
    operation.results[0].replace_all_uses_with(_sum(kept, 1))
    return "chlo.ragged_dot -> stablehlo.dot_general with every group and select"


def _row_is_in_group(sizes: ir.Value, rows: int, groups: int) -> ir.Value:
    """A mask `[rows, groups]`: groups lie one after another, `sizes[g]` rows each."""
    kind = _tensor(sizes.type)
    square = _like(kind, [groups, groups])
    upto = _compare("LE", hlo.iota(square, 1), hlo.iota(square, 0))
    ends = _sum(hlo.select(upto, _broadcast(sizes, [groups, groups], [1]), _zeros(square)), 1)
    starts = hlo.subtract(ends, sizes)
    row = hlo.iota(_like(kind, [rows, groups]), 0)
    after_start = _compare("GE", row, _broadcast(starts, [rows, groups], [1]))
    return hlo.and_(after_start, _compare("LT", row, _broadcast(ends, [rows, groups], [1])))


def _read(whole: ir.Value, dimension: int, index: ir.Value) -> ir.Value:
    """`whole` at `index` of `dimension`, without that dimension."""
    kind = _tensor(whole.type)
    sizes = [1 if d == dimension else size for d, size in enumerate(kind.shape)]
    part = hlo.dynamic_slice(whole, _starts(kind, dimension, index), sizes)
    return hlo.reshape(_like(kind, [s for d, s in enumerate(kind.shape) if d != dimension]), part)


def _write(whole: ir.Value, part: ir.Value, dimension: int, index: ir.Value) -> ir.Value:
    """`whole` with `part` at `index` of `dimension`."""
    kind = _tensor(whole.type)
    sizes = [1 if d == dimension else size for d, size in enumerate(kind.shape)]
    return hlo.dynamic_update_slice(whole, hlo.reshape(_like(kind, sizes), part), _starts(kind, dimension, index))


def _starts(kind: ir.RankedTensorType, dimension: int, index: ir.Value) -> list[ir.Value]:
    return [index if d == dimension else _integer(0) for d in range(kind.rank)]


def _sum(value: ir.Value, dimension: int) -> ir.Value:
    kind = _tensor(value.type)
    scalar = _like(kind, [])
    summed = _like(kind, [s for d, s in enumerate(kind.shape) if d != dimension])
    reduced = hlo.ReduceOp([summed], [value], [_zeros(scalar)], [dimension])
    block = reduced.operation.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        hlo.return_([hlo.add(*block.arguments)])
    return reduced.operation.results[0]


def _compare(direction: str, left: ir.Value, right: ir.Value) -> ir.Value:
    return hlo.compare(left, right, hlo.ComparisonDirectionAttr.get(direction))


def _broadcast(value: ir.Value, shape: Sequence[int], dimensions: Sequence[int]) -> ir.Value:
    return hlo.broadcast_in_dim(_like(_tensor(value.type), shape), value, dimensions)


def _zeros(kind: ir.RankedTensorType) -> ir.Value:
    """Zeros of any element type: the bytes of a zero are zeros, complex and bool included."""
    zero = hlo.constant(ir.DenseElementsAttr.get(np.zeros((), np.int32)))
    return _broadcast(hlo.convert(_like(kind, []), zero), kind.shape, [])


def _integer(value: int) -> ir.Value:
    return hlo.constant(ir.DenseElementsAttr.get(np.asarray(value, np.int64)))


def _like(kind: ir.RankedTensorType, shape: Sequence[int]) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(list(shape), kind.element_type)


def _tensor(kind: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType(kind)
