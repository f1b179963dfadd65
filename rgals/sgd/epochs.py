"""Epochs of stochastic gradient descent: batches, scores, the chain rule from scores to factors, steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from rgals.files.archive import ArraySpec
from rgals.kernels import sgd as kernel
from rgals.kernels.queue import spread
from rgals.kernels.softmax import softmax_batch
from rgals.matrix.csr import CSR
from rgals.runtime.checks import check_choice
from rgals.runtime.errors import ModelFileError, NumericalError
from rgals.runtime.threads import n_threads
from rgals.sgd.graph import ENCODERS, Gradients
from rgals.sgd.losses import Softmax, get_loss
from rgals.sgd.losses._base import Rows, checked
from rgals.sgd.optimizers import Kept, SideState, get_optimizer, get_schedule
from rgals.sgd.samplers import Sampler
from rgals.training.checkpoint import checkpoint_spec

CHUNK = 64  # users whose scores one task computes at once: the block stays in the cache of a core
_ITEMS_PER_TASK = 512  # of the gradient of the items
_ROWS_PER_CALL = 512  # of a sampled loss
_LISTS_PER_CALL = 8  # of a list loss
_PAIRS_FOR_THREADS = 1 << 16  # in smaller batches of sampled losses, waking threads costs more than they save
TILE = 1 << 17  # scores in a tile of the fused softmax, which stays in the cache of a core
#: Default batch size by the kind of the loss: users, interactions, or users.
BATCH = {"full": 256, "sampled": 4096, "list": 64}
#: What `Epochs._pair_scores` multiplies: user rows (B, K), the side of the items, and their ids (B, W) or -1.
Pairs = tuple[np.ndarray, SideState, np.ndarray]


@dataclass
class Batch:
    """B users of a full or list loss, or B interactions of a sampled loss."""

    key: np.uint64  # of the random draws
    users: np.ndarray  # (B,)
    weight: float = 1.0  # by which the step divides the gradient
    block: Any = None  # full and list: the interactions of the users, CSR
    positives: Any = None  # sampled: the items of the interactions (B,),
    weights: Any = None  # their values (B,), or None where all are 1,
    rows: Any = None  # the `Rows` that the loss receives as third argument, or None,
    against: bool = False  # and whether the adversary steps in place of the model


class Epochs:
    """Epochs over a matrix, which update the factors in place: the `rgals.training.run.Steps` of SGD."""

    label: ClassVar[str] = "SGD"
    unit: ClassVar[str] = "epoch"
    outcome: tuple[str, ...] = ("user_factors", "item_factors")

    def __init__(self, model: Any, X: CSR, start: Sequence[np.ndarray], seed: int) -> None:
        # ``model``: an `SGDRanker` with a number in place of every "auto". ``start``: factors, overwritten.
        # ``seed`` decides the order of the interactions and the negatives of every epoch. The caller limits
        # BLAS to one thread.
        self.model, self.X, self.seed = model, X, seed
        self.loss: Any = get_loss(model.loss)
        loss, self.dtype = self.loss, start[0].dtype
        self.schedule = get_schedule(model.schedule, model.warmup)
        self.batch_size = model.batch_size or BATCH[loss.kind]
        self.sampler: Any = None  # None for full losses
        if loss.kind != "full":
            how = {name: getattr(model, name) for name in ("gamma", "exclude_positives", "replacement")}
            how |= {"shared": model.shared_negatives, "for_lists": loss.kind == "list"}
            self.sampler = Sampler(X, model.sampler, model.n_negatives, **how)
        self.n_threads = n_threads(model.n_jobs)  # results do not depend on it
        width = 2 if self.sampler is None or self.sampler.shared else 1 + self.sampler.n
        few_pairs = loss.kind == "sampled" and self.batch_size * width < _PAIRS_FOR_THREADS
        self._pair_threads = 1 if few_pairs else self.n_threads
        optimizer, encoder = get_optimizer(model.optimizer, model.momentum), ENCODERS[model.encoder]
        side = partial(SideState, optimizer=optimizer, n_threads=self.n_threads)
        cosine = model.score == "cosine" and encoder is None
        self.users, self.items = (side(param, cosine) for param in start)
        self.encoder = encoder and encoder(X, (self.users, self.items), model)
        self.adversaries = []  # the users and items of the loss's second pair of factors, if it has one
        if (adversary := getattr(loss, "adversary", None)) is not None:
            rng = np.random.default_rng([seed, 3])
            drawn = ((model.init_scale * rng.standard_normal(p.shape)).astype(p.dtype) for p in start)
            self.adversaries = [side(param, adversary.score == "cosine") for param in drawn]
        self.kept = Kept(getattr(loss, "state", ()), X.n_rows, self.dtype, optimizer)
        self._kept_sides = [*self.kept.sides, *self.adversaries]
        self.inverse_t = self.dtype.type(1 / model.temperature)
        self.offset = self.dtype.type(model.offset)
        self._active = np.flatnonzero(X.row_counts).astype(np.int32)  # users with interactions
        self._buffer = np.empty(0, self.dtype)
        # A loss from outside needs no base class: attributes that it does not have are read with a default.
        self._takes_rows = bool(self.kept.states or self.adversaries or getattr(loss, "takes_rows", False))
        # A subclass of Softmax may compute something else. float64 is for checks, where speed does not count.
        self._fused = type(loss) is Softmax and self.dtype == np.float32
        self._correction = None
        if self.sampler and getattr(loss, "corrects_proposal", False) and self.sampler.correction.any():
            self._correction = self.sampler.correction.astype(self.dtype)
        self._decay = {} if model.decay == "frequency" else {model.decay: model.weight_decay}
        ridges = []  # weights of the squared norms of users and items: from the loss, from the weight decay
        held = loss.penalties(X) if hasattr(loss, "penalties") else None
        if held is not None:
            ridges.append(checked(loss, held, X.col_sums, first=(X.n_rows,), of="penalties"))
        if model.decay == "frequency" and model.weight_decay > 0:
            of_items = (X.col_sums + X.col_sums.mean()) / 2
            ridges.append((model.weight_decay * X.row_sums, model.weight_decay * of_items))
        self._ridge = tuple(sum(side).astype(self.dtype) for side in zip(*ridges, strict=True)) or None
        self._total = float(X.row_sums.sum())

    def step(self, iteration: int) -> float:
        """Run one epoch and return its mean loss; an error names the batch or row that diverged."""
        try:
            objective = self.epoch(iteration - 1)
            for side, factors in (("user", self.users), ("item", self.items)):
                bad = np.flatnonzero(~np.isfinite(factors.param).all(axis=1))
                if len(bad):
                    raise NumericalError(f"the factors of {side} {bad[0]} are not finite: training diverged")
        except NumericalError as error:
            what = f"epoch {iteration}: {error} (loss={self.model.loss!r}, lr={self.model.lr:g})"
            advice = "Lower lr or raise the temperature; the model is what it was before this fit"
            raise NumericalError(f"{what}. {advice}") from None
        return objective

    def user_factors(self) -> np.ndarray:
        """The current factors of the users as they are scored."""
        return self.users.effective

    def item_factors(self) -> np.ndarray:
        """The current factors of the items as they are scored."""
        return self.items.effective

    def _arrays(self) -> dict[str, list[np.ndarray]]:
        # By their names in a checkpoint, which stores those of all ``_kept_sides`` as one array.
        sides = {"user": [self.users], "item": [self.items], "kept": self._kept_sides}
        names = [(side, name) for side in sides if sides[side] for name in self.users.arrays()]
        return {f"{side}_{name}": [part.arrays()[name] for part in sides[side]] for side, name in names}

    def state(self) -> dict[str, np.ndarray]:
        """Factors before they are scaled for scoring, the optimiser's moments, what the loss keeps."""
        found = {}
        for name, parts in self._arrays().items():
            flat = name.startswith("kept_")
            found[name] = np.concatenate([part.ravel() for part in parts]) if flat else parts[0]
        return found

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from a `state` of the same optimiser."""
        parts = self._arrays()
        for name, array in self.state().items():
            stored = state.get(name, np.empty(0))
            if (stored.shape, stored.dtype) != (array.shape, array.dtype):
                what = f"the checkpoint holds {name} of shape {stored.shape} and type {stored.dtype}"
                raise ModelFileError(f"{what}; this fit keeps shape {array.shape} and type {array.dtype}")
            ends = np.cumsum([part.size for part in parts[name]])[:-1]
            for part, values in zip(parts[name], np.split(stored.ravel(), ends), strict=True):
                part[...] = values.reshape(part.shape)
        for factors in (self.users, self.items, *self._kept_sides):
            factors.refresh()
        if self.encoder is not None:
            self.encoder.encode()

    def _map(self, task: Callable[[slice], object], n: int, size: int) -> None:
        """Run the task on slices of n rows, ``size`` at a time."""
        starts = range(0, n, size)

        def some(first: int, stop: int) -> None:
            # Overflows show in the values, which `epoch` checks. numpy keeps this setting per thread.
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                for start in starts[first:stop]:
                    task(slice(start, min(start + size, n)))

        spread(some, len(starts), self.n_threads)

    def epoch(self, epoch: int) -> float:
        """Run one epoch (counted from 0) and return the mean loss per unit of positive weight."""
        # Losses are taken before the step of their batch, with the encoder's term, without ridges and decay.
        source = self.loss.refresh(epoch) if hasattr(self.loss, "refresh") else None
        if source is not None:
            self._refresh(epoch, check_choice("refresh", source, ("exact", "sampled")))
        n = self.X.nnz if self.loss.kind == "sampled" else len(self._active)
        order = np.random.default_rng([self.seed, epoch]).permutation(n)
        starts = range(0, len(order), self.batch_size)
        total = weight = 0.0
        for number, (start, key) in enumerate(zip(starts, self._keys(epoch, 1, len(starts)), strict=True)):
            batch = self._batch(order[start : start + self.batch_size], key, epoch)
            if self.encoder is not None:
                self.encoder.encode(key)
            values, gradients = self._gradients(batch)
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                what = f"the loss of user {batch.users[bad[0]]} became {values[bad[0]]} in batch {number}"
                raise NumericalError(f"{what}: training diverged")
            progress = (epoch + number / len(starts)) / self.model.n_epochs
            lr = self.model.lr * self.schedule(min(progress, 1.0))
            total += float(values.sum()) + self._step(batch, gradients, lr)
            weight += batch.weight
        if self.encoder is not None:
            self.encoder.encode()
        return total / weight if weight else 0.0

    def _keys(self, epoch: int, purpose: int, n: int) -> np.ndarray:
        return np.random.SeedSequence([self.seed, epoch, purpose]).generate_state(n, np.uint64)

    def _batch(self, where: np.ndarray, key: np.uint64, epoch: int) -> Batch:
        """The batch of the users ``_active[where]``; of a sampled loss, of the interactions at ``where``."""
        X, kind = self.X, self.loss.kind
        if kind != "sampled":
            users = np.sort(self._active[where])
            block = X.take_rows(users)
            weight = len(users) if kind == "list" else block.row_sums.sum()
            return Batch(key, users, float(weight), block)
        users = self.sampler.users[where]
        weights = None if X.is_binary else X.values[where].astype(self.dtype)
        weight = len(where) if weights is None else weights.sum(dtype=np.float64)
        rows = Rows(X.row_counts[users], X.n_cols, self.kept.of(users)) if self._takes_rows else None
        against = bool(self.adversaries) and self.loss.adversary.turn(epoch)
        return Batch(key, users, float(weight), None, X.indices[where], weights, rows, against)

    def _gradients(self, batch: Batch) -> tuple[np.ndarray, Gradients]:
        if self.loss.kind == "sampled":
            return self.shared_gradient(batch) if self.sampler.shared else self.sampled_gradient(batch)
        return self.list_gradient(batch) if self.loss.kind == "list" else self.full_gradient(batch)

    def _step(self, batch: Batch, gradients: Gradients, lr: float) -> float:
        """Update the factors and return the value of the encoder's own term."""
        weight, held, value = batch.weight, batch.users, 0.0
        if batch.against:
            for side, (ids, grad) in zip(self.adversaries, gradients, strict=True):
                side.step(grad, self.loss.adversary.lr, ids, grad_scale=-1.0 / weight)
        else:
            both: list[dict[str, Any]] = [{**self._decay, "grad_scale": 1.0 / weight}] * 2
            if self._ridge is not None:
                # A user is in one batch of an epoch, which takes the user's whole ridge. Items are in all of
                # them: each takes a share of the items' ridge, its weight over that of the whole matrix.
                own = np.zeros(len(self.users.param), self.dtype)
                own[held] = self._ridge[0][held]
                ridges = (own, 2.0 / weight), (self._ridge[1], 2.0 / self._total)
                both = [{**both[0], "ridge": ridge, "ridge_scale": scale} for ridge, scale in ridges]
            if self.encoder is not None:
                items = batch.positives if batch.block is None else batch.block.indices
                value, (of_users, of_items) = self.encoder.chain(gradients, [held, items], weight)
                gradients = (None, of_users), (None, of_items)
            for side, (ids, grad), how in zip((self.users, self.items), gradients, both, strict=True):
                side.step(grad, lr, ids, **how)
        if batch.rows is not None:  # by now `rows.state` holds gradients
            self.kept.step(batch.rows.state, held, lr, weight)
        return value

    def full_gradient(self, batch: Batch) -> tuple[np.ndarray, Gradients]:
        """Values (B,) and gradients of a full loss, by three matrix products per chunk of users."""
        loss, users, block = self.loss, batch.users, batch.block
        items, (size, n) = self.items.effective, block.shape
        scaled = self.users.effective[users] * self.inverse_t
        if self._buffer.size < size * n:
            self._buffer = np.empty(size * n, self.dtype)
        values, user_grad, item_grad = found = np.empty(size), np.empty_like(scaled), np.empty_like(items)
        if self._fused:
            tile = int(np.clip(TILE // size, 64, 512))
            tile = -(-n // -(-n // tile))  # the same number of tiles, all of about one size
            softmax_batch(scaled, items, block, tile, self._buffer, self.n_threads, *found)
        else:
            scores = self._buffer[: size * n].reshape(size, n)

            def chunk(s: slice) -> None:
                own = scores[s]
                np.matmul(scaled[s], items.T, out=own)
                own -= self.offset
                answer = loss.value_and_grad(own, block.slice_rows(s.start, s.stop))
                values[s], grad = checked(loss, answer, own)
                own[:] = grad
                np.matmul(own, items, out=user_grad[s])

            self._map(chunk, size, CHUNK)
            self._map(lambda s: np.matmul(scores[:, s].T, scaled, out=item_grad[s]), n, _ITEMS_PER_TASK)
        user_grad *= self.inverse_t
        return values, ((users, user_grad), (None, item_grad))

    def _loss(
        self, batch: Batch, some: slice, pos: np.ndarray, neg: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values and the gradient of ``pos`` of some rows of a sampled loss."""
        # The other gradients overwrite what they belong to: ``neg``, and in ``batch.rows`` the state and the
        # adversary's scores.
        others, given = [neg], [pos, neg]
        if batch.rows is not None:
            rows = batch.rows[some]
            given.append(rows)
            others += [rows.state] if self.kept.states else []
            others += [] if rows.adversary is None else [rows.adversary]
        values, *grads = checked(self.loss, self.loss.value_and_grad(*given), pos, *others)
        if batch.weights is not None:
            weights = batch.weights[some]
            weighted = [(grad.T * weights).T for grad in grads]
            if self.kept.states:
                weighted[2] = np.where([state.weighted for state in self.kept.states], weighted[2], grads[2])
            values, grads = values * weights, weighted
        for out, grad in zip(others, grads[1:], strict=True):
            out[:] = grad
        return values, grads[0]

    def sampled_gradient(self, batch: Batch) -> tuple[np.ndarray, Gradients]:
        """Values (B,) and gradients of the model or the adversary, with negatives drawn for every row."""
        users, n, rows = batch.users, self.sampler.n, batch.rows
        items = np.empty((len(users), 1 + n), np.int32)
        items[:, 0] = batch.positives
        self.sampler.draw(batch.key, users, items, self._pair_threads)
        pairs = self.users.effective[users] * self.inverse_t, self.items, items
        grads = self._pair_scores(pairs, self.offset)
        if self._correction is not None:
            grads[:, 1:] -= self._correction[items[:, 1:]]
        if self.adversaries:
            its_users, its_items = self.adversaries
            its_pairs = its_users.effective[users], its_items, np.ascontiguousarray(items[:, 1:])
            rows.adversary = self._pair_scores(its_pairs)
        values, pos = np.empty(len(users)), grads[:, 0].copy()
        size = max(1, min(_ROWS_PER_CALL, _ROWS_PER_CALL * 128 // n))  # scores stay in the cache of a core

        def piece(s: slice) -> None:
            values[s], grads[s, 0] = self._loss(batch, s, pos[s], grads[s, 1:])

        self._map(piece, len(users), size)
        if batch.against:  # by now `rows.adversary` holds gradients
            return values, self._pair_gradients(users, its_pairs, rows.adversary, self.dtype.type(1))
        return values, self._pair_gradients(users, pairs, grads, self.inverse_t)

    def _pair_scores(self, pairs: Pairs, offset: Any = 0) -> np.ndarray:
        """Scores (B, W) of each row's items less the offset; -inf where the item is -1."""
        rows, side, items = pairs
        out = np.empty(items.shape, self.dtype)
        spread(kernel.pair_scores, len(rows), self._pair_threads, rows, side.effective, items, out)
        if offset:
            out -= offset
        return out

    def _pair_gradients(self, users: np.ndarray, pairs: Pairs, grads: np.ndarray, scale: Any) -> Gradients:
        """Gradients of the factors from those of `_pair_scores`; ``scale`` multiplies those of the users."""
        rows, side, items = pairs
        by_row = np.empty_like(rows)
        spread(kernel.user_gradients, len(users), self._pair_threads, grads, items, side.effective, by_row)
        ids, of_users = self._sum_by_id(users, self.X.n_rows, by_row)
        of_items = self._sum_by_id(items.ravel(), self.X.n_cols, rows, grads.ravel(), width=items.shape[1])
        return (ids, of_users * scale), of_items

    def _refresh(self, epoch: int, source: str) -> None:
        """Let the loss estimate its state of every user from scores of all items or of a sample."""
        loss, users = self.loss, self._active
        keys = self._keys(epoch, 2, -(-len(users) // CHUNK))
        estimates = np.empty((len(users), len(self.kept.states)))

        def some(s: slice) -> None:
            chosen = users[s]
            rows = self.users.effective[chosen] * self.inverse_t
            if source == "exact":
                scores = rows @ self.items.effective.T
            else:
                # Distinct, as an item drawn twice could lift the K-th largest score above that of all items.
                items = self.sampler.lists(keys[s.start // CHUNK], chosen, self.sampler.n, distinct=True)
                scores = np.empty(items.shape, self.dtype)
                kernel.pair_scores(0, len(chosen), rows, self.items.effective, items, scores)
            scores -= self.offset
            estimates[s] = checked(loss, [loss.estimate(scores)], first=estimates[s].shape, of="estimate")[0]

        self._map(some, len(users), CHUNK)
        self.kept.set(users, estimates)

    def list_gradient(self, batch: Batch) -> tuple[np.ndarray, Gradients]:
        """Values (B,) and gradients of a list loss, with a list for each user."""
        users, block, count = batch.users, batch.block, batch.block.row_counts
        items = self.sampler.lists(batch.key, users, self.sampler.n * count)
        there, values = items >= 0, np.empty(len(users))
        pairs = self.users.effective[users] * self.inverse_t, self.items, items
        grads = self._pair_scores(pairs, self.offset)

        def piece(s: slice) -> None:
            own, mask = grads[s], there[s]
            weights = None if block.is_binary else block.slice_rows(s.start, s.stop).values
            scores = own[mask]
            indptr = np.concatenate([[0], np.cumsum(mask.sum(axis=1))])
            answer = self.loss.value_and_grad(scores, indptr, count[s], weights)
            values[s], grad = checked(self.loss, answer, scores, first=(len(own),))
            own[mask] = grad

        self._map(piece, len(users), _LISTS_PER_CALL)
        return values, self._pair_gradients(users, pairs, grads, self.inverse_t)

    def shared_gradient(self, batch: Batch) -> tuple[np.ndarray, Gradients]:
        """Values (B,) and gradients of a sampled loss, with one set of negatives for the whole batch."""
        users, positives, X = batch.users, batch.positives, self.X
        shared = self.sampler.draw_shared(batch.key, positives)
        scaled = self.users.effective[users] * self.inverse_t
        item_rows, own = self.items.effective[shared], self.items.effective[positives]
        neg = np.empty((len(users), len(shared)), self.dtype)
        dpos, by_row, values = np.empty(len(users), self.dtype), np.empty_like(scaled), np.empty(len(users))
        correction = 0 if self._correction is None else self._correction[shared]
        owned = users, X.indptr, X.indices, positives, *_group(shared, X.n_cols)

        def piece(s: slice) -> None:
            np.matmul(scaled[s], item_rows.T, out=neg[s])
            neg[s] -= correction + self.offset
            kernel.mask_items(s.start, s.stop, neg, *owned, self.sampler.exclude_positives)
            pos = np.einsum("bk,bk->b", scaled[s], own[s]) - self.offset
            values[s], dpos[s] = self._loss(batch, s, pos, neg[s])
            np.matmul(neg[s], item_rows, out=by_row[s])
            by_row[s] += dpos[s][:, None] * own[s]

        self._map(piece, len(users), CHUNK)
        by_row *= self.inverse_t
        shared_grad = np.empty_like(item_rows)
        self._map(lambda s: np.matmul(neg[:, s].T, scaled, out=shared_grad[s]), len(shared), _ITEMS_PER_TASK)
        ids = np.concatenate([shared, positives])
        factors = np.concatenate([np.ones(len(shared), self.dtype), dpos])
        of_items = self._sum_by_id(ids, X.n_cols, np.concatenate([shared_grad, scaled]), factors)
        return values, (self._sum_by_id(users, X.n_rows, by_row), of_items)

    def _sum_by_id(
        self, ids: np.ndarray, n: int, vectors: np.ndarray, factors: np.ndarray | None = None, width: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distinct ids, below n, and the sum of ``factors[e] vectors[e // width]`` of each; -1 is no id."""
        starts, order = _group(ids, n)
        unique = np.flatnonzero(np.diff(starts)).astype(np.int32)
        factors = np.ones(len(ids), self.dtype) if factors is None else factors
        out = np.empty((len(unique), vectors.shape[1]), self.dtype)
        groups = np.append(starts[unique], len(order)), order, factors
        spread(kernel.group_sum, len(unique), self._pair_threads, *groups, width, vectors, out)
        return unique, out


def _group(ids: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of each of ``n`` ids, ascending: ``order[starts[i]:starts[i + 1]]``; -1 is left out."""
    positions = np.flatnonzero(ids >= 0).astype(np.int32)
    line = sp.csr_array((positions, ids[positions], [0, len(positions)]), shape=(1, n))
    turned = line.tocsc()  # scipy's counting sort is stable
    return turned.indptr.astype(np.int64), turned.data


_REAL, _SIDES = ("f4", "f8"), ("user", "item")
_MOMENTS = [f"{side}_{name}" for side in _SIDES for name in ("first", "second")]
_ARRAYS = {name: ArraySpec(_REAL, (name, "K")) for name in _MOMENTS}
_ARRAYS |= {f"{side}_steps": ArraySpec(("i8",), (f"n_{side}s",)) for side in _SIDES}
for _name, _kinds in (("factors", _REAL), ("first", _REAL), ("second", _REAL), ("steps", ("i8",))):
    _ARRAYS[f"kept_{_name}"] = ArraySpec(_kinds, (f"n_kept_{_name}",), required=False)
CHECKPOINT = checkpoint_spec("rgals-sgd-checkpoint", Epochs.outcome, _ARRAYS)
