"""The HTTP example with a real client over loopback: answers, bad requests, a new model under load."""

import asyncio
import importlib.util
import json
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

_spec = importlib.util.spec_from_file_location(
    "service_load", Path(__file__).resolve().parent.parent / "benchmarks" / "service.py"
)
bench = sys.modules["service_load"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)


@pytest.fixture(scope="module")
def models():
    return bench.make_models(400, 150, 8)


@pytest.fixture(scope="module")
def service(models, tmp_path_factory):
    """Path of the model file, and the port."""
    path = tmp_path_factory.mktemp("service") / "model.npz"
    models[0].save(path)
    process, port = bench.start(path, "--poll", "0.05")
    yield path, port
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) in (0, -signal.SIGTERM)


def ask(port, path, body=None, raw=None):
    async def once():
        client = bench.Client("127.0.0.1", port)
        answer = await client.post(path, body, raw)
        await client.close()
        return answer

    return asyncio.run(once())


def serve(service, model):
    """Save a model and wait until it is the one that answers."""
    path, port = service
    model.save(path)
    item = model.item_ids_[0].item()
    give_up = time.monotonic() + 400
    while ask(port, "/similar", {"item": item})[1]["model"] != model.fingerprint():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    return port


def test_answers_are_those_of_the_library(service, models):
    port, model = serve(service, models[0]), models[0]
    users, items = model.user_ids_, model.item_ids_
    for row in (0, 17, 399):
        status, answer = ask(port, "/recommend", {"user": users[row].item(), "n": 7})
        ids, scores = model.recommend(row, 7)
        assert status == 200 and [x["item"] for x in answer["items"]] == items[ids[0]].tolist()
        np.testing.assert_allclose([x["score"] for x in answer["items"]], scores[0], rtol=1e-5)
        had = model.seen_[[row]].indices
        gone = items[ids[0, :2]].tolist()
        body = {"history": items[had].tolist(), "exclude": gone, "n": 5}
        answer = ask(port, "/recommend", body)[1]
        new, _ = model.recommend_new(np.bincount(had, minlength=150)[None], 5, exclude_items=ids[0, :2])
        assert [x["item"] for x in answer["items"]] == items[new[0]].tolist()
    answer = ask(port, "/similar", {"item": items[3].item(), "n": 4})[1]
    assert [x["item"] for x in answer["items"]] == items[model.similar_items(3, 4)[0][0]].tolist()
    answer = ask(port, "/explain", {"user": users[9].item(), "item": items[5].item(), "n": 3})[1]
    why = model.explain(9, 5, 3)
    assert [x["item"] for x in answer["because"]] == items[why.items].tolist()
    total = sum(x["contribution"] for x in answer["because"]) + answer["rest"] + answer["all_pairs"]
    assert total == pytest.approx(answer["score"], abs=1e-9)
    answer = ask(port, "/recommend", {"user": "stranger", "popular": True, "n": 3})[1]
    counts = np.bincount(model.seen_.indices, minlength=150)
    assert [x["score"] for x in answer["items"]] == np.sort(counts)[::-1][:3].tolist()
    # As many as there are where more are asked for.
    answer = ask(port, "/recommend", {"user": users[0].item(), "n": 1000})[1]
    assert len(answer["items"]) == 150 - len(model.seen_[[0]].indices)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/recommend", b'{"user": ', 422, "json"),
        ("/recommend", b"\xff\xfe", 4, ""),
        ("/recommend", b"", 422, "body"),
        ("/recommend", [1, 2], 422, "object"),
        ("/recommend", {"user": "nobody"}, 404, "'nobody' is not known"),
        ("/recommend", {"user": 12345678}, 404, "12345678 is not known"),
        ("/recommend", {"user": 1.5}, 422, "integer"),
        ("/recommend", {"user": True}, 422, "integer"),
        ("/recommend", {"user": None}, 422, "either user or history"),
        ("/recommend", {"user": "a", "history": ["b"]}, 422, "either user or history"),
        ("/recommend", {"history": ["nothing"]}, 404, "item 'nothing' is not known"),
        ("/recommend", {"history": "tea"}, 422, "list"),
        ("/recommend", {"history": ["x"] * 10_001}, 422, "10000"),
        ("/recommend", {"user": "a", "n": 1001}, 422, "less than or equal to 1000"),
        ("/recommend", {"user": "a", "n": 10**30}, 422, "1000"),
        ("/recommend", {"user": "a", "n": 0}, 422, "greater than or equal to 1"),
        ("/recommend", {"user": "a", "n": "7"}, 422, "integer"),
        ("/recommend", {"user": "a", "unknown_option": 1}, 422, "unknown_option"),
        ("/recommend", {"user": "x" * (1 << 21)}, 413, "1048576"),
        ("/similar", {"item": "nothing"}, 404, "item 'nothing' is not known"),
        ("/similar", {}, 422, "item"),
        ("/explain", {"user": "nobody", "item": "x"}, 404, "user 'nobody' is not known"),
        ("/nowhere", {}, 404, "Not Found"),
    ],
)
def test_bad_requests_get_a_reason(service, path, body, status, words):
    raw = body if isinstance(body, bytes) else None
    got, answer = ask(service[1], path, body, raw)
    assert got == status or (status == 4 and 400 <= got < 500)
    assert words in json.dumps(answer["detail"])


def test_a_file_that_is_no_model_changes_nothing(service, models):
    port = serve(service, models[0])
    whole = service[0].read_bytes()
    service[0].write_bytes(whole[: len(whole) // 2])
    time.sleep(0.5)
    item = models[0].item_ids_[0].item()
    assert ask(port, "/similar", {"item": item})[1]["model"] == models[0].fingerprint()
    service[0].unlink()
    time.sleep(0.3)
    assert ask(port, "/similar", {"item": item})[1]["model"] == models[0].fingerprint()
    serve(service, models[1])


def test_a_client_that_hangs_up_hurts_nobody(service, models):
    port = serve(service, models[0])
    for part in (
        b"",
        b"POST /recommend HTTP/1.1\r\nContent-Length: 50\r\n\r\n{",
        b"\x00\x01nonsense\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(part)
    assert ask(port, "/similar", {"item": models[0].item_ids_[0].item()})[0] == 200


def check_load(service, models, clients, seconds, swap_every):
    path, port = service
    models[0].save(path)
    latencies, statuses, served, swaps = asyncio.run(
        bench.under_load(path, port, models, clients, seconds, swap_every)
    )
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    print(f"{clients} in flight, {seconds} s: {len(latencies)} answers, p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    assert set(statuses) == {200}, statuses
    assert swaps >= 2 and len(served) == 2, (swaps, served)
    assert len(latencies) > 2 * clients


def test_every_answer_is_right_while_the_model_changes(service, models):
    check_load(service, models, clients=40, seconds=4, swap_every=0.4)


@pytest.mark.slow
def test_two_hundred_requests_at_once_for_half_a_minute(service, models):
    check_load(service, models, clients=200, seconds=30, swap_every=2)
