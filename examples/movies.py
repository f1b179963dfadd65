"""From a file of ratings to a file of recommendations, ten movies for everybody.

python examples/movies.py ratings.csv recommendations.csv

ratings.csv has columns for user, movie and rating, as MovieLens writes them. Without arguments a generated
file is used, and the first lines of the result are shown.
"""

import csv
import sys
import tempfile
from pathlib import Path

from rgals import IALS, RGALS
from rgals.datasets import make_implicit, read_interactions


def recommend_movies(ratings: Path, output: Path) -> None:
    data = read_interactions(ratings, min_value=4)  # what somebody liked; the rest counts as not seen
    model = RGALS(K=64, loss=IALS(alpha0=0.1), reg=0.01, random_state=0).fit(data)
    ids, scores = model.recommend(range(data.n_users), n=10)
    with open(output, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["user", "movie", "rank", "score"])
        for user, movies, values in zip(data.user_ids, data.item_ids[ids], scores, strict=True):
            for rank, (movie, score) in enumerate(zip(movies, values, strict=True), start=1):
                if score > float("-inf"):  # fewer than ten where somebody has seen nearly everything
                    table.writerow([user, movie, rank, f"{score:.4f}"])
    print(f"{data.nnz} ratings of 4 and more, {data.n_users} users, {data.n_items} movies -> {output.name}")


def generate_ratings(path: Path) -> None:
    data = make_implicit(500, 400, valued=True, random_state=0)
    pairs = data.matrix.tocoo()
    with open(path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["userId", "movieId", "rating"])
        for user, movie, value in zip(*pairs.coords, pairs.data, strict=True):
            table.writerow([data.user_ids[user], data.item_ids[movie], min(2 + int(value), 5)])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        recommend_movies(Path(sys.argv[1]), Path(sys.argv[2]))
    elif len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as folder:
            ratings, output = Path(folder) / "ratings.csv", Path(folder) / "recommendations.csv"
            generate_ratings(ratings)
            recommend_movies(ratings, output)
            print("".join(output.read_text(encoding="utf-8").splitlines(keepends=True)[:11]), end="")
    else:
        sys.exit(__doc__)
