"""Vectors of `WIDTH` values in compiled code, one for each chunk: loaded, computed with and stored as a whole.

A loop over the chunks would leave this to LLVM's vectorizer, which checks before each such loop whether the arrays
overlap, and keeps sums in memory; on the arcs of a graph that would take most of the time. Sixteen float32 values are
one register of AVX-512, two of AVX2 and four of NEON.
"""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, overload, register_model

WIDTH = 16
_compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = intrinsic


class Lanes(types.Type):
    """The type of a vector of `WIDTH` values."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(f"Lanes({dtype})")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Any) -> None:
        super().__init__(manager, lanes, ir.VectorType(manager.lookup(lanes.dtype).get_value_type(), WIDTH))


@_compiled
def load(typing: Any, rows: Any, j: Any) -> Any:
    """Row `j` of a contiguous array (any number, `WIDTH`)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, args), align=rows.dtype.bitwidth // 8)

    return (Lanes(rows.dtype)(rows, j), code) if rows.layout == "C" else None


@_compiled
def store(typing: Any, rows: Any, j: Any, lanes: Any) -> Any:
    """Overwrite row `j` of a contiguous array (any number, `WIDTH`)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, signature, args), align=rows.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return (types.void(rows, j, lanes), code) if rows.layout == "C" else None


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    rows, number = signature.args[:2]
    j = context.cast(builder, args[1], number, types.intp)
    data = context.make_array(rows)(context, builder, args[0]).data
    first = builder.gep(data, [builder.mul(j, ir.Constant(j.type, WIDTH))])
    return builder.bitcast(first, context.get_value_type(Lanes(rows.dtype)).as_pointer())


@_compiled
def spread(typing: Any, value: Any) -> Any:
    """The same value in all lanes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _spread(builder, args[0])

    return Lanes(value)(value), code


def _spread(builder: Any, value: Any) -> Any:
    empty = ir.Constant(ir.VectorType(value.type, WIDTH), ir.Undefined)
    index = ir.IntType(32)
    one = builder.insert_element(empty, value, ir.Constant(index, 0))
    return builder.shuffle_vector(one, empty, ir.Constant(ir.VectorType(index, WIDTH), [0] * WIDTH))


@_compiled
def at_least_zero(typing: Any, lanes: Any) -> Any:
    """The larger of each value and zero; NaN stays NaN."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(args[0].type, [0.0] * WIDTH)
        return builder.select(builder.fcmp_unordered(">", args[0], zero), args[0], zero)

    return lanes(lanes), code


def _define(operation: Callable[..., Any], instruction: str) -> None:
    """Define an operation of two vectors, or of a vector and a number."""

    @_compiled
    def compute(typing: Any, left: Any, right: Any) -> Any:
        lanes = left if isinstance(left, Lanes) else right

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            both = (
                value if isinstance(its, Lanes) else _spread(builder, context.cast(builder, value, its, lanes.dtype))
                for value, its in zip(args, signature.args, strict=True)
            )
            return getattr(builder, instruction)(*both)

        return lanes(left, right), code

    @overload(operation)
    def of_lanes(left, right):  # type: ignore[no-untyped-def]
        if isinstance(left, Lanes) or isinstance(right, Lanes):
            return lambda left, right: compute(left, right)
        return None


for _operation, _instruction in (
    (operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv"),
):  # fmt: skip
    _define(_operation, _instruction)
