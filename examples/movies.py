"""From ratings to a parquet file of recommendations, ten movies for everybody: movies.py ratings.csv out.parquet

ratings.csv has columns for user, movie and rating, as MovieLens writes them. Without arguments a generated
file is used, and the first lines of the result are shown.
"""

import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from rgals import IALS, RGALS
from rgals.datasets import make_implicit, read_interactions
from rgals.scoring import recommend_all

if len(sys.argv) not in (1, 3):
    sys.exit(__doc__)
with tempfile.TemporaryDirectory() as folder:
    ratings, output = sys.argv[1:] or (Path(folder) / "ratings.npz", Path(folder) / "recommendations.parquet")
    if len(sys.argv) == 1:
        make_implicit(500, 400, valued=True, random_state=0).save(ratings)
    data = read_interactions(ratings, min_value=4 if len(sys.argv) == 3 else 2)  # liked; the rest: not seen
    model = RGALS(K=64, loss=IALS(alpha0=0.1), reg=0.01, random_state=0).fit(data)
    written = recommend_all(model, output, n=10, verbose=1)  # a run that is stopped goes on where it was
    print(f"{data.nnz} ratings, {written.served} users, {data.n_items} movies: {written.rows} rows")
    for row in pq.read_table(output).slice(0, 10).to_pylist():
        print("  ".join(f"{name} {value}" for name, value in row.items()))
