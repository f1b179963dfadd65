"""Loops instead of numpy's reductions and searches, which numba is slow to compile."""

from rgals.kernels.compile import inner


@inner
def ends(x):
    """The smallest and the largest entry."""
    low = high = x[0]
    for value in x:
        low = min(low, value)
        high = max(high, value)
    return low, high


@inner
def lower_bound(x, start, stop, value):
    """The first index from ``start`` on, at most ``stop``, with ``x[index] >= value``; ``x`` is sorted."""
    while start < stop:
        middle = (start + stop) // 2
        if x[middle] < value:
            start = middle + 1
        else:
            stop = middle
    return start


@inner
def contains(x, start, stop, value):
    """Whether ``value`` is among the sorted ``x[start:stop]``."""
    at = lower_bound(x, start, stop, value)
    return at < stop and x[at] == value
