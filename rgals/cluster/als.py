"""ALS on a cluster: that of one process, whose half-steps are graphs of tasks on the workers."""

from copy import copy
from dataclasses import dataclass, field, replace
from operator import getitem
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
class Remote:
    """Factors of a side on the workers: futures."""

    side: Blocks
    tables: list[Any]
    sums: list[Any] = field(default_factory=list)  # for the half-step in which they are fixed
    penalty: float = 0.0


class ClusterProblem:
    """What a fit minimises, on the cluster: coefficients are made there, and so are the plans of all rows."""

    def __init__(self, graphs: Graphs, model: Any, shards: Shards, weighting: Weighting, dtype: Any) -> None:
        self.graphs, self.reg_exponent = graphs, float(model.reg_exponent)
        self.users, self.items = sides = shards.sides(weighting, dtype)
        margins = [graphs.each(f"{side.name}-margins", tasks.margins, side.matrices) for side in sides]
        found = graphs.submit(graphs.one("degrees", tasks.degrees, *margins))
        alone: Degrees = graphs.results([found])[0]
        shards.row_counts = alone.user_count
        self.degrees = replace(alone, matrix=cast(Any, shards))
        self.loss: Loss = get_loss(model.loss).resolve(self.degrees, model.K)
        self.coefficients = graphs.submit(graphs.one("coefficients", self.loss.coefficients_for, found))
        self.reg = choose_reg(model, self.loss, self.degrees, self._logs)
        self.setting = tasks.Setting(self.loss, self.reg, self.reg_exponent, model.K, np.dtype(dtype))
        plans = [self._each(side, "plan", tasks.prepare, self.coefficients, self.setting) for side in sides]
        self.users.blocks, self.items.blocks = graphs.submit(plans)
        facts = graphs.submit([graphs.each(f"{side.name}-facts", tasks.facts, side.blocks) for side in sides])
        weighted, self.constant = True, 0.0
        for side, futures in zip(sides, facts, strict=True):
            weights, (interaction, *_), constants = zip(*graphs.results(futures), strict=True)
            side.kind = tasks.Kind(interaction, side is self.items, self.setting.dtype)
            weighted &= any(weights)
            self.constant += sum(constants)
        self.solver = "exact" if weighted else "shared"

    def _each(self, side: Blocks, what: str, function: Any, *always: Any) -> list[Any]:
        of = side.matrices, side.cuts[:-1]
        return self.graphs.each(f"{side.name}-{what}", function, *of, always=(side.name, *always))

    def _logs(self) -> list[Any]:
        sides = self.users, self.items
        parts = (self._each(side, "logs", tasks.logs, self.coefficients) for side in sides)
        return [map(sum, zip(*self.graphs.results(some), strict=True)) for some in parts]

    def start(self, rng: np.random.Generator, scale: float) -> Remote:
        """The random user factors that a fit on one machine starts from."""
        graphs, tables, last = self.graphs, list[str](), cast(Any, rng)
        for i, n in enumerate(np.diff(self.users.cuts).tolist()):
            drawn = graphs.one(f"users-draw-{i}", tasks.draw, last, n, scale, self.setting)
            tables.append(graphs.one(f"users-start-{i}", getitem, drawn, 0))
            last = graphs.one(f"users-generator-{i}", getitem, drawn, 1)
        return Remote(self.users, graphs.submit(tables))


class ClusterBackend:
    """Half-steps on the workers, each of them one graph: what `rgals.solvers.als.ALS` needs of a backend."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs

    def download(self, factors: Remote) -> np.ndarray:
        """Factors in the client's memory."""
        return self.gather(factors.tables)

    def gather(self, tables: list[Any]) -> np.ndarray:
        """The same of futures."""
        return np.concatenate([part.array for part in self.graphs.results(tables)])

    def ridge(self, factors: Remote, ridge: None) -> float:
        """``sum_r ridge_r |f_r|^2`` of factors that a half-step has found."""
        return factors.penalty

    def half_step(
        self, rows: Blocks, fixed: Any, side: Any, *, rotate: bool = False, out: Any = None, warm: bool = True
    ) -> HalfStep:
        """See `rgals.solvers.base.Backend`."""
        graph, name, of = self.graphs, rows.name, fixed.side.name
        kind, own = replace(rows.kind, rotate=rotate), (fixed.tables, fixed.side.blocks)
        sums = fixed.sums or graph.each(f"{of}-start-sums", tasks.add_up, *own)
        to = graph.one(f"{name}-basis", tasks.change, sums, kind)
        turned = graph.each(f"{of}-turn", tasks.turn, *own, always=(to,))
        given, added = (graph.name, turned, to, kind), None
        if kind.coupled and kind.interaction:
            parts = graph.each(f"{name}-couple", tasks.couple, rows.blocks, always=given)
            added = graph.one(f"{name}-coupling", tasks.shift, parts, kind)
        solved = graph.each(name, tasks.solve, rows.blocks, always=(*given, added))
        sums = graph.each(f"{name}-sums", tasks.add_up, solved, rows.blocks)
        total = graph.one(f"{name}-total", tasks.total, sums)
        solved, sums, turned, (total,) = graph.submit([solved, sums, turned if rotate else [], [total]])
        if out is not None:  # the workers may forget what the graph has read
            out.tables, out.sums = [], []
        if rotate:
            fixed.tables, fixed.sums = turned, []
        penalty, value = graph.results([total])[0]
        return HalfStep(Remote(rows, solved, sums, penalty), value)


class ClusterALS(ALS):
    """Alternating half-steps on a cluster."""

    label: ClassVar[str] = "ALS on a cluster"
    outcome: tuple[str, ...] = ()  # factors stay where they are
    backend: Any

    def __init__(self, problem: ClusterProblem, users: Remote, item_scale: np.ndarray | None) -> None:
        self.problem, self.backend = cast(Any, problem), ClusterBackend(problem.graphs)
        self.item_scale, self.sampler = item_scale, None
        self._user_side, self._item_side = cast(Any, (problem.users, problem.items))
        self._users, self._items = users, Remote(problem.items, [])

    def step(self, iteration: int) -> float:
        """One iteration; the loss's stated objective."""
        self.backend.graphs.iteration = iteration
        return super().step(iteration)

    def finish(self) -> tuple[list[Any], list[Any], list[str]]:
        """Futures of users and items, and what to warn of; the last half-step is made as a fold-in is."""
        problem, graphs = cast(Any, self.problem), self.backend.graphs
        items = self._items
        users = self._users = self.backend.half_step(problem.users, items, problem.users).factors
        judged = []
        for rows, fixed in ((users, items), (items, users)):
            always = rows.side.name, problem.coefficients, problem.setting, fixed.tables
            of = rows.side.blocks, rows.tables
            judged += graphs.each(f"{rows.side.name}-judge", tasks.judge, *of, always=always)
        return users.tables, items.tables, [one for said in graphs.results(judged) for one in said]

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a `state`."""
        for name, factors in (("user", self._users), ("item", self._items)):
            bounds = factors.side.cuts[1:-1]
            parts = [tasks.Table(part) for part in np.split(restored(state, name), bounds)]
            graphs = self.backend.graphs
            factors.tables = graphs.submit(graphs.each(f"{name}s-restored", copy, parts))
            factors.sums = []
