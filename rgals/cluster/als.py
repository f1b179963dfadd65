"""ALS on a cluster: `rgals.solvers.als.ALS` with half-steps that are graphs of tasks on the workers."""

from copy import copy
from dataclasses import dataclass, field, replace
from operator import attrgetter, getitem
from typing import Any, ClassVar, cast

import numpy as np

from rgals.cluster import tasks
from rgals.cluster.graph import Graphs
from rgals.cluster.shards import Blocks, Shards
from rgals.losses import Degrees, Loss, get_loss
from rgals.matrix.weighting import Weighting
from rgals.solvers.als import ALS, choose_reg, restored
from rgals.solvers.base import HalfStep


@dataclass
class RemoteFactors:
    """The factors of one side, on the workers."""

    side: Blocks
    tables: list[Any]  # futures of `tasks.Table`, one for each block
    sums: list[Any] = field(default_factory=list)  # futures of their `tasks.Sums`, if they are made already
    penalty: float = 0.0  # ``sum_r ridge_r |f_r|^2``


class ClusterProblem:
    """The `rgals.solvers.als.Problem` of a cluster, where coefficients and the plans of all rows are made."""

    priors = None, None

    def __init__(self, graphs: Graphs, model: Any, shards: Shards, weighting: Weighting, dtype: Any) -> None:
        self.graphs, self.reg_exponent = graphs, float(model.reg_exponent)
        self.users, self.items = sides = shards.sides(weighting, dtype)
        of_rows = attrgetter("likes.row_sums", "likes.row_counts")
        margins = [graphs.each(f"{side.name}-margins", of_rows, side.matrices) for side in sides]
        on_cluster = graphs.submit(graphs.one("degrees", tasks.degrees, *margins))
        degrees: Degrees = graphs.results([on_cluster])[0]
        shards.row_counts = degrees.user_count
        self.degrees = replace(degrees, matrix=cast(Any, shards))
        self.loss: Loss = get_loss(model.loss).resolve(self.degrees, model.K)
        self.coefficients = graphs.submit(graphs.one("coefficients", self.loss.coefficients_for, on_cluster))
        self.reg = choose_reg(model, self.loss, self.degrees, self._logs)
        self.setting = tasks.Setting(self.loss, self.reg, self.reg_exponent, model.K, np.dtype(dtype))
        plans = [self._each(side, "plan", tasks.prepare, self.coefficients, self.setting) for side in sides]
        self.users.blocks, self.items.blocks = graphs.submit(plans)
        facts = attrgetter("weighted", "plan.side.interaction", "constant")
        found = graphs.submit([graphs.each(f"{side.name}-facts", facts, side.blocks) for side in sides])
        weighted, self.constant = True, 0.0  # weighted: on both sides
        for side, futures in zip(sides, found, strict=True):
            weights, interactions, constants = zip(*graphs.results(futures), strict=True)
            side.interaction = interactions[0]  # the same in all blocks
            weighted &= any(weights)
            self.constant += sum(constants)
        self.solver = "exact" if weighted else "shared"

    def _each(self, side: Blocks, what: str, function: Any, *always: Any) -> list[Any]:
        """Add a task for each block of a side, of its matrix, first row, the side's name and ``always``."""
        columns = side.matrices, side.cuts[:-1]
        return self.graphs.each(f"{side.name}-{what}", function, *columns, always=(side.name, *always))

    def _logs(self) -> list[Any]:
        """The `rgals.solvers.als.weight_logs` of users and of items."""
        sides = self.users, self.items
        parts = (self._each(side, "logs", tasks.logs, self.coefficients) for side in sides)
        return [map(sum, zip(*self.graphs.results(some), strict=True)) for some in parts]

    def start(self, rng: np.random.Generator, scale: float) -> RemoteFactors:
        """The same random user factors as of a fit in one process: one generator draws block after block."""
        graphs, tables, last = self.graphs, list[str](), cast(Any, rng)
        for i, n in enumerate(np.diff(self.users.cuts).tolist()):
            drawn = graphs.one(f"users-draw-{i}", tasks.draw, last, n, scale, self.setting)
            tables.append(graphs.one(f"users-start-{i}", getitem, drawn, 0))
            last = graphs.one(f"users-generator-{i}", getitem, drawn, 1)
        return RemoteFactors(self.users, graphs.submit(tables))


class ClusterBackend:
    """The `rgals.solvers.base.Backend` of a cluster: each half-step is one graph."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs

    def download(self, factors: RemoteFactors) -> np.ndarray:
        """Factors in the client's memory."""
        return np.concatenate([part.array for part in self.graphs.results(factors.tables)])

    def ridge(self, factors: RemoteFactors, ridge: None) -> float:
        """``sum_r ridge_r |f_r|^2`` of factors from a half-step, which has computed it on the workers."""
        return factors.penalty

    def half_step(
        self, rows: Blocks, fixed: Any, side: Any, *, rotate: bool = False, out: Any = None, warm: bool = True
    ) -> HalfStep:
        """See `rgals.solvers.base.Backend`."""
        graphs, name, other = self.graphs, rows.name, fixed.side.name
        columns = fixed.tables, fixed.side.blocks
        sums = fixed.sums or graphs.each(f"{other}-start-sums", tasks.add_up, *columns)
        basis = graphs.one(f"{name}-basis", tasks.change, sums, 0.0 if rows.coupled else rows.interaction)
        turned = graphs.each(f"{other}-turn", tasks.turn, *columns, always=(basis,))
        # The name of the graph, unique to the half-step, tells a process which fixed side it holds already.
        always, added = (graphs.name, turned), None
        if rows.coupled and rows.interaction:
            parts = graphs.each(f"{name}-couple", tasks.couple, rows.blocks, always=always)
            added = graphs.one(f"{name}-coupling", tasks.shift, parts, rows.interaction)
        solved = graphs.each(name, tasks.solve, rows.blocks, always=(*always, added, basis, rotate))
        sums = graphs.each(f"{name}-sums", tasks.add_up, solved, rows.blocks)
        total = graphs.one(f"{name}-total", tasks.total, sums)
        solved, sums, turned, (total,) = graphs.submit([solved, sums, turned if rotate else [], [total]])
        if out is not None:  # frees the last factors of these rows on the workers
            out.tables, out.sums = [], []
        if rotate:
            fixed.tables, fixed.sums = turned, []
        penalty, value = graphs.results([total])[0]
        return HalfStep(RemoteFactors(rows, solved, sums, penalty), value)


class ClusterALS(ALS):
    """Alternating half-steps on a cluster."""

    label: ClassVar[str] = "ALS on a cluster"
    outcome: tuple[str, ...] = ()  # factors stay on the workers
    backend: Any

    def __init__(self, problem: ClusterProblem, users: RemoteFactors, item_scale: np.ndarray | None) -> None:
        self.problem, self.backend = cast(Any, problem), ClusterBackend(problem.graphs)
        self.item_scale, self.sampler = item_scale, None
        self._user_side, self._item_side = cast(Any, (problem.users, problem.items))
        self._users, self._items = users, RemoteFactors(problem.items, [])

    def step(self, iteration: int) -> float:
        """One iteration; the loss's stated objective."""
        self.backend.graphs.iteration = iteration
        return super().step(iteration)

    def finish(self) -> tuple[list[Any], list[Any], list[str]]:
        """Futures of users and items, and warnings; users are solved once more, as a fold-in solves them."""
        problem, graphs = cast(Any, self.problem), self.backend.graphs
        items = self._items
        users = self._users = self.backend.half_step(problem.users, items, problem.users).factors
        warnings = []
        for rows, fixed in ((users, items), (items, users)):
            always = rows.side.name, problem.coefficients, problem.setting, fixed.tables
            of = rows.side.blocks, rows.tables
            warnings += graphs.each(f"{rows.side.name}-judge", tasks.judge, *of, always=always)
        return users.tables, items.tables, [line for lines in graphs.results(warnings) for line in lines]

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a `state`."""
        graphs = self.backend.graphs
        for name, factors in (("user", self._users), ("item", self._items)):
            arrays = np.split(restored(state, name), factors.side.cuts[1:-1])
            parts = [tasks.Table(array) for array in arrays]
            factors.tables = graphs.submit(graphs.each(f"{name}s-restored", copy, parts))
            factors.sums = []
