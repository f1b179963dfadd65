"""Work in chunks that fit the memory of a device."""

from collections.abc import Callable

from rgals.runtime.errors import DeviceMemoryError

#: Most systems of one batched call.
BATCH = 1 << 15
LESS = "use fewer factors, dtype='float32' or device='cpu'"


class Room:
    """Temporary memory that work may use at once."""

    def __init__(self, size: int, free: Callable[[], None]) -> None:
        # Bytes: a constant of the device, not what happens to be free, so that two runs cut their work alike
        # and agree to the last bit. Where even that is not to be had, chunks are halved.
        self.size = size
        self.free = free  # gives unused memory back to the device, before smaller chunks are tried

    def chunks(self, n: int, bytes_each: int, work: Callable[[int, int], None], *, most: int = BATCH) -> None:
        """Call ``work(start, stop)`` for consecutive parts of ``range(n)``, at most ``most`` long."""
        # It must be able to run again for a part that ended for lack of memory, of which one of the n needs
        # bytes_each. A DeviceMemoryError says that there is not even that.
        start = 0
        while start < n:
            size = max(1, min(n - start, self.size // max(1, bytes_each), most))
            try:
                work(start, start + size)
            except MemoryError as error:
                self.free()
                if size == 1:
                    piece = f"{bytes_each / 2**20:.1f} MiB, the smallest that the work can be cut into"
                    what = f"the device has no memory left for a piece of {piece}"
                    raise DeviceMemoryError(f"{what}; {LESS}") from error
                self.size = size * bytes_each // 2
                continue
            start += size
