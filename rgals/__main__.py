"""``python -m rgals``, and the script ``rgals``."""

import gc
import sys

from rgals.runtime.lazy import uncollected


def main() -> int:
    """Import the command line, which takes a second or two, and run it."""
    try:
        with uncollected():
            from rgals.cli import main
        gc.freeze()  # what was imported stays to the end, when it would be gone through once more
        return main()
    except KeyboardInterrupt:
        print("rgals: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
