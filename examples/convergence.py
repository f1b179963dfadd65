"""Time to quality on your own data: exact least squares against softmax by gradient descent.

    python examples/convergence.py ratings.csv

Without a file, generated data are used. Every method is tuned on validation first, then run with several
seeds; evaluation is outside the clock. The folder `comparison` gets a picture, a page for the browser and all
figures as JSON lines; stopped at any point, the same command goes on where it was. `rgals compare` does the
same from the command line.
"""

import sys

from rgals.compare import Effort, compare
from rgals.datasets import make_implicit, read_interactions

data = read_interactions(sys.argv[1]) if len(sys.argv) > 1 else make_implicit(600, 400, random_state=0)
result = compare(
    data,
    ["rg2", "ials", "softmax_dot", "bpr"],
    out=sys.argv[2] if len(sys.argv) > 2 else "comparison",
    name="my data",
    K=16,
    seeds=2,
    effort=Effort(max_trials=4, time_limit=20.0),
)
print(result)
fastest = min(result.rows, key=lambda row: row.seconds_to[0.95])
print(f"First to 95 % of the best validation {result.metric.upper()}: {fastest.label}")
