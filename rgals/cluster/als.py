"""ALS on a cluster: the steps of a fit, two graphs an iteration."""

from dataclasses import replace
from typing import Any, ClassVar, cast

import numpy as np

from rgals.cluster import tasks
from rgals.cluster.graph import Graphs
from rgals.cluster.shards import Shards
from rgals.losses import AUTO, Degrees, Loss, get_loss
from rgals.solvers.als import reg_at
from rgals.solvers.basis import Change

SIDES = ("users", "items")


class Side:
    """A side of a fit on the cluster: futures of what belongs to each of its blocks."""

    def __init__(self, name: str, matrices: list[Any], cuts: np.ndarray) -> None:
        self.name, self.matrices, self.cuts = name, matrices, cuts.tolist()
        self.blocks: list[Any] = []
        self.weights: list[Any] = []
        self.factors: list[Any] = []
        self.sums: list[Any] = []  # of the factors, for the half-step in which they are fixed
        self.kind: Any = None


class ClusterProblem:
    """What a fit minimises, on the cluster: coefficients are made there, and so are the plans of all rows."""

    def __init__(self, graphs: Graphs, model: Any, shards: Shards, dtype: np.dtype) -> None:
        self.graphs, self.dtype, self.K, self.shape = graphs, dtype, model.K, shards.shape
        found = graphs.one(tasks.degrees, *shards.margins.values(), what="degrees")
        alone: Degrees = graphs.results([found])[0]
        vars(shards).update(row_counts=alone.user_count, row_sums=alone.user_sum)
        self.degrees = replace(alone, matrix=cast(Any, shards))
        self.loss: Loss = get_loss(model.loss).resolve(self.degrees, model.K)
        c = self.coefficients = graphs.one(tasks.coefficients, self.loss, found, what="coefficients")
        self.reg_exponent, matrices = float(model.reg_exponent), (shards.users, shards.items)
        cuts = shards.cuts, shards.item_cuts
        self.sides = {name: Side(name, matrices[i], cuts[i]) for i, name in enumerate(SIDES)}
        self.reg = self._reg(model.reg)
        setting = self.setting = tasks.Setting(self.reg, self.reg_exponent, model.K, dtype)
        for name, side in self.sides.items():
            of, firsts = [name] * len(side.matrices), side.cuts[:-1]
            side.blocks = graphs.each(
                f"{name}-plan", tasks.prepare, of, side.matrices, firsts, always=(c, setting)
            )
            stops = side.cuts[1:]
            side.weights = graphs.each(f"{name}-weigh", tasks.weights, of, firsts, stops, always=(c, dtype))
        parts = {
            s.name: graphs.results(graphs.each(f"{s.name}-facts", tasks.facts, s.blocks))
            for s in self.sides.values()
        }
        for name, side in self.sides.items():
            coupled = name == "items"
            ratio, interaction = _ratio(parts[name]), parts[name][0].interaction
            ratio = None if coupled and interaction else ratio
            side.kind = tasks.Kind(ratio, interaction, coupled, True, dtype)
        weighted = all(any(part.has_weights for part in found) for found in parts.values())
        self.solver = "exact" if weighted else "shared"
        users = self.sides["users"]
        constants = graphs.each(
            "users-constant", tasks.constant, users.matrices, users.cuts[:-1], always=(self.loss, c)
        )
        self.constant = sum(graphs.results(constants))

    def _reg(self, reg: Any) -> float:
        if reg != AUTO:
            return float(reg)
        rule = self.loss.defaults(self.degrees, self.K)["reg"]
        if self.reg_exponent == 1.0:
            return rule
        logs = []
        for name, side in self.sides.items():
            given = [name] * len(side.matrices), side.matrices, side.cuts[:-1]
            parts = self.graphs.results(
                self.graphs.each(f"{name}-logs", tasks.logs, *given, always=(self.coefficients,))
            )
            logs.append((sum(part[0] for part in parts), sum(part[1] for part in parts)))
        return reg_at(rule, self.reg_exponent, logs)

    def draw_users(self, rng: np.random.Generator, scale: float) -> None:
        """The random factors that a fit on one machine starts from."""
        users, graphs, K = self.sides["users"], self.graphs, self.K
        graph: dict[str, tuple] = {}
        last: Any = rng
        for i, (start, stop) in enumerate(zip(users.cuts[:-1], users.cuts[1:], strict=True)):
            graph[graphs.key("users-start", i)] = tasks.draw, last, stop - start, K, scale, self.dtype
            graph[graphs.key("users-skip", i)] = tasks.skip, last, (stop - start) * K, self.dtype
            last = graphs.key("users-skip", i)
        del graph[last]
        users.factors = graphs.submit(graph, [graphs.key("users-start", i) for i in range(len(users.blocks))])

    def half_step(self, name: str, iteration: int, last: Any, kind: Any = None) -> Any:
        """One graph: the factors of a side, given those of the other; the change of basis that it made."""
        graphs, side = self.graphs, self.sides[name]
        fixed, kind = self.sides[SIDES[name == "users"]], kind or side.kind
        key, graph, n = graphs.key, dict[str, tuple](), range(len(side.blocks))
        fixed_sums = fixed.sums
        if not fixed_sums:
            fixed_sums = [key(f"{fixed.name}-start-sums", j) for j in range(len(fixed.blocks))]
            for of, *args in zip(fixed_sums, fixed.factors, fixed.weights, fixed.blocks, strict=True):
                graph[of] = tasks.add_up, *args, None
        to, half = key(f"{name}-basis", iteration), key(name, iteration)
        graph[to] = tasks.change, list(fixed_sums), kind, last
        turned = [key(f"{fixed.name}-turn", iteration, j) for j in range(len(fixed.blocks))]
        for of, factors, own in zip(turned, fixed.factors, fixed.weights, strict=True):
            graph[of] = tasks.turn, factors, to, own
        added = None
        if kind.coupled and kind.interaction:
            parts = [key(f"{name}-couple", iteration, i) for i in n]
            for of, block in zip(parts, side.blocks, strict=True):
                graph[of] = tasks.couple, half, block, turned, to, kind
            added = key(f"{name}-coupling", iteration)
            graph[added] = tasks.shift, parts, kind
        solved, sums = ([key(what, iteration, i) for i in n] for what in (name, f"{name}-sums"))
        for of, then, block, own in zip(solved, sums, side.blocks, side.weights, strict=True):
            graph[of] = tasks.solve, half, block, turned, to, kind, added
            graph[then] = tasks.add_up, of, own, block, to
        wanted = [*solved, *sums, to, *(turned if kind.rotate else [])]
        futures = graphs.submit(graph, wanted)
        side.factors, side.sums = futures[: len(n)], futures[len(n) : 2 * len(n)]
        if kind.rotate:
            fixed.factors = futures[2 * len(n) + 1 :]
        fixed.sums = []
        return futures[2 * len(n)]

    def warnings(self) -> list[str]:
        """What is to be said of the precision of the factors."""
        graph: dict[str, tuple] = {}
        for name, other in (SIDES, SIDES[::-1]):
            side, fixed = self.sides[name], self.sides[other].factors
            for i, (block, factors) in enumerate(zip(side.blocks, side.factors, strict=True)):
                given = block, self.coefficients, self.setting, factors, fixed
                graph[self.graphs.key(f"{name}-judge", i)] = tasks.judge, name, *given
        return [said for part in self.graphs.results(self.graphs.submit(graph)) for said in part]


def _ratio(parts: list[Any]) -> float | None:
    """`Plan.ratio` of all blocks together."""
    found = [part.ratio for part in parts if part.n_solved]
    if not found or None in found or np.ptp(found) > 1e-12 * max(found):
        return None
    return found[0]


class ClusterALS:
    """Alternating half-steps on a cluster, items first: the `rgals.training.run.Steps` of a problem."""

    label: ClassVar[str] = "ALS on a cluster"
    unit: ClassVar[str] = "it"
    outcome: tuple[str, ...] = ()  # factors stay where they are

    def __init__(self, problem: ClusterProblem, item_scale: np.ndarray | None) -> None:
        self.problem, self.graphs, self.item_scale = problem, problem.graphs, item_scale
        self._last: Any = None  # future of the change of basis of the last half-step, of users

    def step(self, iteration: int) -> float:
        """One iteration; the loss's stated objective."""
        problem = self.problem
        between = problem.half_step("items", iteration, self._last)
        penalty = self.graphs.one(
            tasks.total, problem.sides["items"].sums, what="items-total", number=iteration
        )
        self._last = problem.half_step("users", iteration, between)
        value = self.graphs.one(
            tasks.total, problem.sides["users"].sums, what="users-total", number=iteration
        )
        (lost, _), (_, won) = self.graphs.results([penalty, value])
        return problem.constant + lost - won

    def finish(self) -> list[str]:
        """The last user half-step, as a fold-in does it: lengths are right then. Returns what to warn of."""
        items, users = (self.problem.sides[name] for name in ("items", "users"))
        items.factors = self._downloaded("items")
        items.sums = users.sums = []
        kind = replace(users.kind, rotate=False)
        self.problem.half_step("users", 0, None, kind)
        return self.problem.warnings()

    def _downloaded(self, name: str) -> list[Any]:
        given = self._last, name == "users"
        return self.graphs.each(
            f"{name}-download", tasks.download, self.problem.sides[name].factors, always=given
        )

    def user_factors(self) -> np.ndarray:
        """The current factors of the users, brought to the client."""
        return self._gather(self._downloaded("users"))

    def item_factors(self) -> np.ndarray:
        """The current factors of the items, as they score."""
        found = self._gather(self._downloaded("items"))
        return found if self.item_scale is None else found * self.item_scale[:, None]

    def _gather(self, futures: list[Any]) -> np.ndarray:
        return np.concatenate([part.table for part in self.graphs.results(futures)])

    def state(self) -> dict[str, np.ndarray]:
        """All that the next step reads, in the client's memory: see `rgals.solvers.als.ALS.state`."""
        last: Change = self.graphs.results([self._last])[0]
        found = {}
        for name, basis in (("user", last.solved_basis), ("item", last.fixed_basis)):
            found[f"{name}_factors"] = self._gather(self.problem.sides[f"{name}s"].factors)
            if basis is not None:
                found[f"{name}_basis"] = basis
        return found

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from a `state`."""
        bases = state.get("item_basis"), state.get("user_basis")
        none: Any = None
        self._last = self.graphs.one(
            tasks.same, Change(none, none, *bases, whitens=False), what="restored-basis"
        )
        for name, side in self.problem.sides.items():
            table = state[f"{name[:-1]}_factors"]
            parts = [table[a:b] for a, b in zip(side.cuts[:-1], side.cuts[1:], strict=True)]
            side.factors = self.graphs.each(f"{name}-restored", tasks.given, parts)
        users = self.problem.sides["users"]
        given = users.factors, users.weights, users.blocks
        users.sums = self.graphs.each("users-restored-sums", tasks.add_up, *given, always=(self._last,))
