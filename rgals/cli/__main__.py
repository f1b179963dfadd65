"""``python -m rgals.cli``."""

import sys

from rgals.cli import main

sys.exit(main())
