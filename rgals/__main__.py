"""``python -m rgals``."""

import sys

from rgals.cli import main

sys.exit(main())
