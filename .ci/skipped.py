"""Fail if a test is skipped in every job: a test that runs nowhere protects nothing.

Usage: python .ci/skipped.py OUTCOMES...

Each file was written by a job that ran pytest with RGALS_OUTCOMES set to its name (tests/conftest.py). Tests
with a marker of `ELSEWHERE` may be skipped: what they need is not in the jobs given, and they are counted. So
may those whose reason is one of `EXPECTED`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter

ELSEWHERE = {"gpu": "needs a GPU", "realdata": "needs the real data sets"}
EXPECTED = (
    # scikit-learn's own check of its array API, which RGALS does not claim.
    r"SCIPY_ARRAY_API is not set",
)


def main(paths: list[str]) -> int:
    """Compare the outcomes of all jobs; returns the exit code."""
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    jobs = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            jobs.append(json.load(file))
    ran = {test for job in jobs for test, entry in job.items() if entry["outcome"] == "ran"}
    if not ran:
        print("no test ran at all", file=sys.stderr)
        return 1
    wrong, elsewhere = [], Counter()
    for job in jobs:
        for test, entry in job.items():
            if test in ran or any(re.search(pattern, entry["reason"]) for pattern in EXPECTED):
                continue
            markers = sorted(ELSEWHERE.keys() & set(entry["markers"]))
            if markers:
                elsewhere[ELSEWHERE[markers[0]]] += 1
            else:
                wrong.append(f"{test}: {entry['reason']}")
    for what, count in elsewhere.items():
        print(f"skipped here: {count} tests, each {what}")
    if wrong:
        print(
            f"{len(wrong)} tests are skipped in every job:", *sorted(set(wrong)), sep="\n  ", file=sys.stderr
        )
        return 1
    print(f"{len(ran)} tests ran; none is skipped everywhere")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
