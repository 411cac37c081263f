"""Sixteen values at a time: three operations that Numba's own loops turn into slow code, as LLVM's vectors.

They are portable: a processor without registers of 512 bits works in halves or quarters. Positions are not checked.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
"""Values that one operation takes; also a cache line of fp32."""

_INT = ir.IntType(32)
_BITS = ir.IntType(LANES)
_VALUES = ir.VectorType(ir.FloatType(), LANES)


def _close_lanes(_: Any, values: Any, at: Any, scale: Any, bits: Any, byte: Any, out: Any, to: Any) -> Any:
    """Writes the signs of ``values[at:at + 16]`` to ``bits[byte:byte + 2]`` and ``value - sign * scale`` to ``out``."""
    signature = types.void(values, types.intp, types.float32, bits, types.intp, out, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        numbers = builder.load(_pointer(context, builder, signature, given, 0, _VALUES), align=4)
        positive = builder.fcmp_ordered(">=", numbers, ir.Constant(_VALUES, [0.0] * LANES))
        builder.store(builder.bitcast(positive, _BITS), _pointer(context, builder, signature, given, 3, _BITS), align=1)
        signed = _signed(builder, positive, given[2])
        place = _pointer(context, builder, signature, given, 5, _VALUES)
        builder.store(builder.fsub(numbers, signed), place, align=4)
        return context.get_dummy_value()

    return signature, generate


def _spread_lanes(_: Any, bits: Any, byte: Any, scale: Any, out: Any, to: Any, add: Any) -> Any:
    """Writes ``scale`` or ``-scale`` to ``out[to:to + 16]`` by ``bits[byte:byte + 2]``; adds it if ``add`` is 1."""
    signature = types.void(bits, types.intp, types.float32, out, types.intp, types.boolean)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        word = builder.load(_pointer(context, builder, signature, given, 0, _BITS), align=1)
        signed = _signed(builder, builder.bitcast(word, ir.VectorType(ir.IntType(1), LANES)), given[2])
        place = _pointer(context, builder, signature, given, 3, _VALUES)
        with builder.if_else(builder.trunc(given[5], ir.IntType(1))) as (adds, writes):
            with adds:
                builder.store(builder.fadd(builder.load(place, align=4), signed), place, align=4)
            with writes:
                builder.store(signed, place, align=4)
        return context.get_dummy_value()

    return signature, generate


def _prefetch(_: Any, values: Any, at: Any) -> Any:
    """Asks for the cache line of ``values[at]``, which may lie behind the end."""
    signature = types.void(values, types.intp)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = _pointer(context, builder, signature, given, 0, ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [place.type, _INT, _INT, _INT])
        call = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        read, keep, data = ir.Constant(_INT, 0), ir.Constant(_INT, 3), ir.Constant(_INT, 1)
        builder.call(call, [place, read, keep, data])
        return context.get_dummy_value()

    return signature, generate


def _pointer(context: Any, builder: Any, signature: Any, given: Any, number: int, kind: Any) -> Any:
    """Returns the place in array argument ``number`` at the position that follows it, as a pointer to ``kind``."""
    array = context.make_array(signature.args[number])(context, builder, given[number])
    return builder.bitcast(builder.gep(array.data, [given[number + 1]]), kind.as_pointer())


def _signed(builder: Any, positive: Any, scale: Any) -> Any:
    nothing = ir.Constant(_VALUES, ir.Undefined)
    first = builder.insert_element(nothing, scale, ir.Constant(_INT, 0))
    up = builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_INT, LANES), [0] * LANES))
    return builder.select(positive, up, builder.fneg(up))


close_lanes: Any = intrinsic(_close_lanes)
spread_lanes: Any = intrinsic(_spread_lanes)
prefetch: Any = intrinsic(_prefetch)
