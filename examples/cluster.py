"""A fit on a Dask cluster: here two processes of this machine, elsewhere Client("tcp://scheduler:8786").

    pip install "rgals[cluster,parquet]"
    python examples/cluster.py

Workers read the parquet files, number their ids, solve their blocks and write the lists.
"""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from dask.distributed import Client, LocalCluster

from rgals.cluster import DaskRGALS
from rgals.datasets import make_implicit


def main() -> None:
    """Fit, write lists."""
    with tempfile.TemporaryDirectory() as folder:
        # Events as they lie in a data lake: files of users and items.
        pairs = make_implicit(600, 400, random_state=0).matrix.tocoo()
        events = pa.table({"user": [f"u{row}" for row in pairs.row], "item": pairs.col})
        (Path(folder) / "events").mkdir()
        size = -(-len(events) // 4)
        for part in range(4):
            pq.write_table(events.slice(part * size, size), f"{folder}/events/{part}.parquet")
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            model = DaskRGALS(K=16, random_state=0, client=client).fit(f"{folder}/events")
            print(model)
            written = model.recommend_all(f"{folder}/lists", n=5)
            print(f"{written.rows} recommendations for {written.served} users")
            local = model.to_local()
        print("u7 gets", *local.recommend(["u7"], n=5)[0][0])


if __name__ == "__main__":  # workers of a LocalCluster import this file
    main()
