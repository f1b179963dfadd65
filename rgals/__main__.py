"""``python -m rgals``, and the script ``rgals``."""

import sys


def main() -> int:
    """Import the command line, which takes a second or two, and run it."""
    try:
        from rgals.cli import main

        return main()
    except KeyboardInterrupt:
        print("rgals: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
