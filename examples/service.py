"""A model behind HTTP: recommendations, similar items and explanations as JSON; a new file is swapped in.

pip install "rgals[service]"
python examples/service.py model.npz --port 8000
curl -H 'Content-Type: application/json' -d '{"user": "ann", "n": 5}' http://127.0.0.1:8000/recommend
curl -H 'Content-Type: application/json' -d '{"history": ["tea", "milk"]}' http://127.0.0.1:8000/recommend
curl -H 'Content-Type: application/json' -d '{"item": "tea"}' http://127.0.0.1:8000/similar
curl -H 'Content-Type: application/json' -d '{"user": "ann", "item": "tea"}' http://127.0.0.1:8000/explain
curl http://127.0.0.1:8000/health
curl http://127.0.0.1:8000/metrics

`model.save("model.npz")` replaces the file in one step; the service notices, loads and checks the new one
beside the old one, and changes over between two requests. A file that cannot be loaded changes nothing. Every
answer comes from one model and names it. Who does not send a whole request in time is hung up on, and more
requests at once than `--most` are turned away (503). `/metrics` is for Prometheus: requests and their seconds
by path and status, models loaded and refused, memory. One process; run several behind a balancer for more.
"""

import argparse
import json
import logging
import os
import socket
import threading
import time
from typing import Annotated, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector, generate_latest
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from rgals import RGALS, Positions, RgalsError, UnknownIdError
from rgals.datasets import IdMap
from rgals.matrix.csr import TimedMatrix

MAX_N, MAX_IDS, MAX_BYTES = 1000, 10_000, 1 << 20
PATHS = {"/recommend", "/similar", "/explain", "/health", "/metrics"}
log = logging.getLogger("uvicorn.error")

Id = StrictInt | StrictStr
N = Annotated[int, Field(strict=True, ge=1, le=MAX_N)]
Ids = Annotated[list[Id], Field(max_length=MAX_IDS)]


class Query(BaseModel):
    model_config = ConfigDict(extra="forbid")
    n: N = 10


class Recommend(Query):
    user: Id | None = None
    history: Ids | None = None  # instead of a user: items that somebody unknown has
    exclude: Ids = []
    among: Ids | None = None  # only these, for example what is in stock
    popular: bool = False  # for an unknown user: popular items instead of an error

    @model_validator(mode="after")
    def one_of_both(self) -> "Recommend":
        if (self.user is None) == (self.history is None):
            raise ValueError("give either user or history")
        return self


class Similar(Query):
    item: Id


class Explain(Query):
    user: Id
    item: Id


class Loaded(NamedTuple):
    model: RGALS
    users: IdMap
    items: IdMap
    name: str
    newest: float | None  # time of the last interaction, where these age


def load(path: str) -> Loaded:
    model = RGALS.load(path).set_params(n_jobs=1)  # one request after the other, in the event loop
    users, items = model.factors_
    ids = (
        np.arange(len(factors)) if labels is None else labels
        for labels, factors in ((model.user_ids_, users), (model.item_ids_, items))
    )
    newest = None if model.half_life is None else model.seen_.times.max()
    loaded = Loaded(model, *map(IdMap, ids, ("user", "item")), model.fingerprint(), newest)
    model.recommend_new(history_of(loaded, [0]), n=1)  # compiles now what the first request would wait for
    model.similar_items(Positions(0), n=1)
    model.explain(Positions(0), Positions(0))
    return loaded


def history_of(loaded: Loaded, columns: Any) -> Any:
    """What somebody has; where interactions age, it is as new as the newest of the fit."""
    columns = np.unique(columns).astype(int)  # once, however often it is named
    n = len(columns)
    made = sp.csr_array((np.ones(n), (np.zeros(n, int), columns)), shape=(1, len(loaded.items)))
    return made if loaded.newest is None else TimedMatrix.of(made, np.full(n, loaded.newest))


def listed(loaded: Loaded, ids: np.ndarray, scores: np.ndarray) -> list[dict[str, Any]]:
    found = ids >= 0
    labels = loaded.items.labels[ids[found]].tolist()
    return [{"item": item, "score": s} for item, s in zip(labels, scores[found].tolist(), strict=True)]


class Answer(Response):
    """JSON in ASCII, which can say any label: also text that UTF-8 cannot express."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


class Limit:
    """Refuses large bodies before they are read."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size = dict(scope.get("headers", [])).get(b"content-length", b"0")
        chunked = scope["type"] == "http" and b"transfer-encoding" in dict(scope["headers"])
        if chunked or not size.isdigit() or int(size) > MAX_BYTES:
            answer = Answer({"detail": f"give content-length, of at most {MAX_BYTES} bytes"}, 413)
            await answer(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class Measured:
    """Counts requests and their seconds, for `/metrics`."""

    def __init__(self, app: Any, registry: CollectorRegistry) -> None:
        self.app = app
        labels = ["path", "status"]
        self.seconds = Histogram("rgals_request_seconds", "Until the answer ended", labels, registry=registry)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        status, began = 500, time.perf_counter()

        async def note(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, note)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"  # or anybody could make a million
            self.seconds.labels(path, status).observe(time.perf_counter() - began)


def make_app(path: str, poll: float = 0.5) -> FastAPI:
    app = FastAPI(title="rgals", description=__doc__)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    files = Counter("rgals_model_files", "New files, by what came of them", ["outcome"], registry=registry)
    serving = Info("rgals_model", "The model that answers", registry=registry)
    app.add_middleware(Limit)
    app.add_middleware(Measured, registry=registry)
    first = stamp(path)  # before it is loaded: a file that comes meanwhile is another one
    app.state.loaded = load(path)
    serving.info({"name": app.state.loaded.name})

    def watch() -> None:
        last = first
        while True:
            time.sleep(poll)
            now = stamp(path)
            if now is None or now == last:
                continue
            try:
                app.state.loaded = load(path)  # one assignment: no request sees anything between
                serving.info({"name": app.state.loaded.name})
                files.labels("served").inc()
                log.info("now serving %s", app.state.loaded.name)
            except Exception as error:  # whatever it is, the next file deserves a look
                files.labels("refused").inc()
                log.error("still serving %s: %r", app.state.loaded.name, error)
            last = now

    threading.Thread(target=watch, daemon=True).start()

    @app.exception_handler(RgalsError)
    async def refused(_: Request, error: RgalsError) -> Answer:
        return Answer({"detail": str(error)}, 404 if isinstance(error, UnknownIdError) else 422)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Answer:
        # Without the input itself: NaN, for one, is no JSON.
        faults = [{key: fault[key] for key in ("type", "loc", "msg")} for fault in error.errors()[:10]]
        return Answer({"detail": faults}, 422)

    @app.get("/health")
    async def health() -> Answer:
        loaded = app.state.loaded
        return Answer({"model": loaded.name, "users": len(loaded.users), "items": len(loaded.items)})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    @app.post("/recommend")
    async def recommend(query: Recommend) -> Answer:
        loaded = app.state.loaded
        options = {"exclude_items": Positions(loaded.items.index(query.exclude)), "cold": "popular"}
        if query.among is not None:
            options["candidates"] = Positions(loaded.items.index(query.among))
        row = [] if query.history is None else loaded.items.index(query.history)
        user = loaded.users.index([query.user], missing="mark")[0] if query.user is not None else -1
        typed = [] if user >= 0 or query.user is None else [str(query.user)]
        if (loaded.users.parse(typed, missing="mark") >= 0).any():  # "7" where a user is 7
            raise HTTPException(
                422, f"user {query.user!r:.80} is one of another type; give ids as in training"
            )
        if user >= 0:
            ids, scores = loaded.model.recommend(Positions(user), query.n, **options)
        elif query.history is not None or query.popular:
            ids, scores = loaded.model.recommend_new(history_of(loaded, row), query.n, **options)
        else:
            raise HTTPException(
                404, f"user {query.user!r:.80} is not known; popular=true gives popular items"
            )
        return Answer({"model": loaded.name, "items": listed(loaded, ids, scores)})

    @app.post("/similar")
    async def similar(query: Similar) -> Answer:
        loaded = app.state.loaded
        ids, scores = loaded.model.similar_items(Positions(loaded.items.index([query.item])), query.n)
        return Answer({"model": loaded.name, "items": listed(loaded, ids, scores)})

    @app.post("/explain")
    async def explain(query: Explain) -> Answer:
        loaded = app.state.loaded
        user, item = loaded.users.index([query.user])[0], loaded.items.index([query.item])[0]
        why = loaded.model.explain(Positions(user), Positions(item), query.n)
        past = listed(loaded, why.items, why.contributions)
        because = [{"item": part["item"], "contribution": part["score"]} for part in past]
        rest = {name: getattr(why, name) for name in ("score", "rest", "all_pairs", "negatives", "features")}
        return Answer({"model": loaded.name, "because": because, **rest})

    return app


def stamp(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    # The time of its change, too: permissions that are put right make a refused file worth another look.
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


class Server(uvicorn.Server):
    """Closes connections that keep it waiting: half a request costs the sender nothing, but a socket here."""

    def __init__(self, config: uvicorn.Config, patience: float) -> None:
        super().__init__(config)
        self.patience = patience
        self.since: dict[Any, float] = {}  # when it began to wait, by connection and its last request

    async def on_tick(self, counter: int) -> bool:
        now = time.monotonic()
        waiting = [
            (one, one.cycle)
            for one in self.server_state.connections
            if one.cycle is None or one.cycle.more_body or one.cycle.response_complete
        ]
        self.since = {key: self.since.get(key, now) for key in waiting}
        for (one, _), since in self.since.items():
            if now - since > self.patience:
                one.transport.close()
        return await super().on_tick(counter)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--poll", type=float, default=0.5, help="seconds between looks at the file")
    parser.add_argument(
        "--patience", type=float, default=20, help="seconds that a request may take to arrive"
    )
    parser.add_argument("--most", type=int, default=1000, help="connections and requests at once")
    args = parser.parse_args()
    if not args.poll > 0:
        parser.error("--poll must be above 0")
    try:
        app = make_app(args.model, args.poll)
    except (RgalsError, OSError) as error:
        parser.exit(1, f"{args.model}: {error}\n")
    try:  # now, so that nobody waits for the model
        listener = socket.create_server((args.host, args.port), backlog=2048)
    except OSError as error:
        parser.exit(1, f"{args.host}:{args.port}: {error}\n")
    print(f"http://{args.host}:{listener.getsockname()[1]} serves {app.state.loaded.name}", flush=True)
    config = uvicorn.Config(app, ws="none", access_log=False, log_level="info", limit_concurrency=args.most)
    Server(config, args.patience).run(sockets=[listener])


if __name__ == "__main__":
    main()
