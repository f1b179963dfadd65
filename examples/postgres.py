"""Lists of `recommend_all` into PostgreSQL, in one transaction: readers see the old table until all is there.

python examples/postgres.py recommendations.parquet postgresql://user@host/shop [table]

It needs adbc-driver-postgresql and pyarrow. A reader asks for one user's list:
SELECT item, score FROM recommendations WHERE "user" = 'u17' ORDER BY rank

The table is a new one each time. Once, as the user who writes,
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO reader
lets `reader` see all of them; a view on the table prevents the next one.
"""

import sys

import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi
from pyarrow import RecordBatchReader

if len(sys.argv) not in (3, 4):
    sys.exit(__doc__)
path, address, table = [*sys.argv[1:], "recommendations"][:3]
with pq.ParquetFile(path) as file, dbapi.connect(address) as connection, connection.cursor() as cursor:
    batches = RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
    cursor.execute(f"DROP TABLE IF EXISTS {table}_new")
    rows = cursor.adbc_ingest(f"{table}_new", batches, mode="create")
    cursor.execute(f'ALTER TABLE {table}_new ADD PRIMARY KEY ("user", rank)')
    cursor.execute(f"DROP TABLE IF EXISTS {table}")
    cursor.execute(f"ALTER TABLE {table}_new RENAME TO {table}")
    connection.commit()
print(f"{rows:,} recommendations in the table {table}")
