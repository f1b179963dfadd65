"""What workers of a cluster are forked from: the package with its kernels loaded, and dask."""

import distributed  # noqa: F401
from instruments.zygote import warm_up

import rgals.cluster.tasks  # noqa: F401

warm_up()
