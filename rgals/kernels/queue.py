"""A work queue for parallel loops: threads take the next piece of work when they are done with one.

numba splits a ``prange`` into equal static chunks, which puts all heavy rows on one thread when rows are
sorted by cost. A ``prange`` over threads, each draining one shared counter, balances any distribution.
"""

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def fetch_add(typingctx, counter, index, amount):
    """Atomically add ``amount`` to ``counter[index]`` (int64 array) and return the value from before."""
    if not (isinstance(counter, types.Array) and counter.dtype == types.int64):
        return None

    def codegen(context, builder, signature, args):
        typ = signature.args[0]
        array = context.make_array(typ)(context, builder, args[0])
        i = context.cast(builder, args[1], signature.args[1], types.intp)
        amount = context.cast(builder, args[2], signature.args[2], types.int64)
        pointer = cgutils.get_item_pointer(context, builder, typ, array, [i])
        return builder.atomic_rmw("add", pointer, amount, "monotonic")

    return types.int64(counter, index, amount), codegen
