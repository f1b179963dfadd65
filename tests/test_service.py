"""The HTTP example with a real client over loopback: answers, bad requests, a new model under load."""

import ast
import asyncio
import functools
import http.client
import importlib.util
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import scipy.sparse as sp

from rgals import RGALS, Positions
from rgals.datasets import read_interactions

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
    stop(process)


def stop(process):
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(120) in (0, -signal.SIGTERM)
    finally:
        process.kill()


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A service on its own, with the ids of the examples, that waits two seconds for a request: the port."""
    matrix = sp.csr_array((np.random.default_rng(0).random((20, 12)) < 0.4).astype(np.float32))
    users = ["ann", "\ud800", *(f"user {k}" for k in range(18))]  # one of them is not text in UTF-8
    items = ["tea", "milk", "\udcff", "東京", *(f"item {k}" for k in range(8))]
    path = tmp_path_factory.mktemp("shop") / "model.npz"
    RGALS(K=4, n_iter=2, random_state=0).fit(matrix, user_ids=users, item_ids=items).save(path)
    process, port = bench.start(path, "--patience", "2")
    yield port
    stop(process)


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
        ids, scores = model.recommend(Positions(row), 7)
        assert status == 200 and [x["item"] for x in answer["items"]] == items[ids[0]].tolist()
        np.testing.assert_allclose([x["score"] for x in answer["items"]], scores[0], rtol=1e-5)
        had = model.seen_[[row]].indices
        gone = items[ids[0, :2]].tolist()
        body = {"history": items[had].tolist(), "exclude": gone, "n": 5}
        answer = ask(port, "/recommend", body)[1]
        new, _ = model.recommend_new(
            np.bincount(had, minlength=150)[None], 5, exclude_items=Positions(ids[0, :2])
        )
        assert [x["item"] for x in answer["items"]] == items[new[0]].tolist()
    answer = ask(port, "/similar", {"item": items[3].item(), "n": 4})[1]
    assert [x["item"] for x in answer["items"]] == items[model.similar_items(Positions(3), 4)[0][0]].tolist()
    answer = ask(port, "/explain", {"user": users[9].item(), "item": items[5].item(), "n": 3})[1]
    why = model.explain(Positions(9), Positions(5), 3)
    assert [x["item"] for x in answer["because"]] == items[why.items].tolist()
    others = sum(answer[name] for name in ("rest", "all_pairs", "negatives", "features"))
    total = sum(x["contribution"] for x in answer["because"]) + others
    assert total == pytest.approx(answer["score"], abs=1e-9)
    answer = ask(port, "/recommend", {"user": "stranger", "popular": True, "n": 3})[1]
    counts = np.bincount(model.seen_.indices, minlength=150)
    assert [x["score"] for x in answer["items"]] == np.sort(counts)[::-1][:3].tolist()
    # As many as there are where more are asked for.
    answer = ask(port, "/recommend", {"user": users[0].item(), "n": 1000})[1]
    assert len(answer["items"]) == 150 - len(model.seen_[[0]].indices)


@functools.cache
def example():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("service_example", bench.SERVICE)
    service = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(service)
    return service


def test_a_user_whose_id_is_of_another_type_is_nobody_unknown(tmp_path):
    """Asked for as "7", user 7 got popular items in silence."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((60, 30)) < 0.3)
    service = example()
    for ids, wrong in ((users, "7"), (list(map(str, users)), 7)):
        model = RGALS(K=4, n_iter=2, random_state=0).fit(read_interactions((ids, items)))
        model.save(tmp_path / "model.npz")
        routes = service.make_app(tmp_path / "model.npz").routes
        endpoint = next(route.endpoint for route in routes if route.path == "/recommend")
        with pytest.raises(service.HTTPException, match="give ids as in training"):
            asyncio.run(endpoint(service.Recommend(user=wrong, popular=True)))
        for stranger in ("77", 77, "None"):
            answer = asyncio.run(endpoint(service.Recommend(user=stranger, popular=True, n=3)))
            assert len(json.loads(answer.body)["items"]) == 3


def test_a_model_whose_interactions_age_takes_histories(tmp_path):
    """Its file was refused, as histories had no times: they are as new as the newest of the fit."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((60, 30)) < 0.3)
    events = (users, [f"i{k:02d}" for k in items], np.ones(len(users)), rng.random(len(users)))
    model = RGALS(K=4, half_life=1.0, random_state=0).fit(read_interactions(events))
    model.save(tmp_path / "model.npz")
    service = example()
    loaded = service.load(tmp_path / "model.npz")
    now = model.seen_.times.max()
    expected = model.recommend_new(read_interactions(([0, 0], ["i03", "i05"], [1, 1], [now, now])), 4)
    routes = service.make_app(tmp_path / "model.npz").routes
    endpoint = next(route.endpoint for route in routes if route.path == "/recommend")
    answer = asyncio.run(endpoint(service.Recommend(history=["i05", "i03", "i05"], n=4)))
    items = json.loads(answer.body)["items"]
    assert [x["item"] for x in items] == expected[0][0].tolist()
    np.testing.assert_allclose([x["score"] for x in items], expected[1][0], rtol=1e-6)
    assert loaded.model.recommend_new(service.history_of(loaded, []), 4)[0].shape == (1, 4)


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
        ("/recommend", {"user": 10**30}, 422, "64 bits"),
        ("/recommend", {"user": -(10**30)}, 422, "64 bits"),
        ("/recommend", {"history": [1, 10**30]}, 422, "64 bits"),
        ("/recommend", {"history": [-1, 2**64 - 1]}, 422, "64 bits"),
        ("/recommend", {"user": "a", "exclude": [10**30]}, 422, "64 bits"),
        ("/recommend", b'{"user": ' + b"9" * 5000 + b"}", 4, ""),
        ("/recommend", b'{"user": NaN}', 422, "integer"),
        ("/recommend", b'{"user": "a", "n": NaN}', 422, "integer"),
        ("/recommend", b'{"history": [-Infinity]}', 422, "integer"),
        ("/recommend", b'{"user": 1e999}', 422, "integer"),
        ("/recommend", b"NaN", 422, "object"),
        ("/recommend", b'"\\ud800"', 422, "object"),
        ("/recommend", b'{"user": "a", "\\ud800": 1}', 422, ""),
        ("/recommend", b'{"user": "\\ud800"}', 404, "not known"),
        ("/recommend", {"user": "u1\0"}, 404, "not known"),
        ("/recommend", {"history": [None] * 10_000}, 422, "integer"),
        ("/recommend", b"[" * 100_000, 4, ""),
        ("/recommend", {"user": "a", "unknown_option": 1}, 422, "unknown_option"),
        ("/recommend", {"user": "x" * (1 << 21)}, 413, "1048576"),
        ("/similar", {"item": "nothing"}, 404, "item 'nothing' is not known"),
        ("/similar", {}, 422, "item"),
        ("/similar", {"item": 10**30}, 422, "64 bits"),
        ("/similar", b'{"item": NaN}', 422, "integer"),
        ("/explain", {"user": "nobody", "item": "x"}, 404, "user 'nobody' is not known"),
        ("/explain", {"user": 10**30, "item": "x"}, 422, "64 bits"),
        ("/explain", b'{"user": "a", "item": -NaN}', 4, ""),
        ("/nowhere", {}, 404, "Not Found"),
    ],
)
def test_bad_requests_get_a_reason(service, path, body, status, words):
    raw = body if isinstance(body, bytes) else None
    got, answer = ask(service[1], path, body, raw)
    assert got == status or (status == 4 and 400 <= got < 500)
    assert words in json.dumps(answer["detail"])
    assert len(json.dumps(answer)) < 3000, "the answer does not grow with the question"


CURLS = [
    line
    for line in ast.get_docstring(ast.parse(bench.SERVICE.read_text(encoding="utf-8"))).splitlines()
    if line.startswith("curl ")
]
QUESTIONS = [line for line in CURLS if " -d " in line]


def request_of(words):
    """Method, address, body and headers of the curl line's words."""
    headers, body, rest = {}, None, iter(words[1:])
    for word in rest:
        if word == "-H":
            name, value = next(rest).split(": ")
            headers[name] = value
        elif word == "-d":
            body = next(rest)
            headers.setdefault("Content-Type", "application/x-www-form-urlencoded")  # as curl does
        else:
            address = urlsplit(word)
    return "GET" if body is None else "POST", address, body, headers


@pytest.mark.few(4)
@pytest.mark.parametrize("client", ["curl", "http.client"])
@pytest.mark.parametrize("line", QUESTIONS)
def test_the_documented_lines_do_what_they_say(shop, line, client):
    words = shlex.split(line.replace(":8000/", f":{shop}/"))
    assert str(shop) in words[-1]
    if client == "curl":
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed; the same request is sent by http.client")
        done = subprocess.run(
            ["curl", "--silent", "--fail-with-body", *words[1:]], capture_output=True, timeout=60
        )
        assert done.returncode == 0, done
        answer = json.loads(done.stdout)
    else:
        method, address, body, headers = request_of(words)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
        connection.request(method, address.path, body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        connection.close()
    assert answer["model"] and (answer.get("items") or answer.get("because"))


def test_there_is_a_documented_line_for_every_question():
    assert {line.rpartition("/")[2] for line in QUESTIONS} == {"recommend", "similar", "explain"}
    assert {line.rpartition("/")[2] for line in CURLS} - {"recommend", "similar", "explain"} == {
        "health",
        "metrics",
    }


def look(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.status == 200
    return response.read().decode()


def figures(port):
    """What /metrics says, by name and labels."""
    lines = [line for line in look(port, "/metrics").splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_count_requests_files_and_memory(service, models):
    port = serve(service, models[0])
    before = figures(port)
    item = {"item": models[0].item_ids_[0].item()}
    for _ in range(3):
        ask(port, "/similar", item)
    ask(port, "/similar", {})
    ask(port, f"/{'x' * 50}", {})
    serve(service, models[1])
    after = figures(port)

    def grown(name):
        return after.get(name, 0) - before.get(name, 0)

    seconds = 'rgals_request_seconds_count{{path="{}",status="{}"}}'.format
    assert grown(seconds("/similar", 200)) > 3 and grown(seconds("/similar", 422)) == 1
    assert grown(seconds("other", 404)) == 1 and not any("xxx" in name for name in after)
    assert grown('rgals_model_files_total{outcome="served"}') >= 1
    assert after[f'rgals_model_info{{name="{models[1].fingerprint()}"}}'] == 1
    health = json.loads(look(port, "/health"))
    assert health == {"model": models[1].fingerprint(), "users": 400, "items": 150}


def test_only_what_is_among_the_asked_for_is_recommended(service, models):
    port, model = serve(service, models[0]), models[0]
    among = model.item_ids_[[3, 50, 99]].tolist()
    for who in ({"user": model.user_ids_[7].item()}, {"history": model.item_ids_[[1, 2]].tolist()}):
        answer = ask(port, "/recommend", {**who, "among": among})[1]
        assert 0 < len(answer["items"]) <= 3 and {part["item"] for part in answer["items"]} <= set(among)
    assert ask(port, "/recommend", {**who, "among": []})[1]["items"] == []
    assert ask(port, "/recommend", {**who, "among": ["nothing"]})[0] == 404


def test_labels_that_utf8_cannot_express_are_answered(shop):
    status, answer = ask(shop, "/recommend", raw=b'{"history": ["tea"], "n": 12}')
    assert status == 200 and {"\udcff", "東京"} <= {part["item"] for part in answer["items"]}
    assert ask(shop, "/recommend", raw=b'{"user": "\\ud800"}')[0] == 200


def test_who_sends_half_a_request_is_hung_up_on(shop):
    """And nobody else: not who sends slowly, and not who asks again and again over one connection."""
    head = b"POST /similar HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
    whole = head + b'{"item": "tea"}'
    halves = {b"": 0, whole[:30]: 0, whole[:-5]: 0, whole + whole[:30]: 1, whole + whole[:-5]: 1}
    connections = []
    for sent in halves:
        connections.append(socket.create_connection(("127.0.0.1", shop), timeout=60))
        connections[-1].sendall(sent)
    busy = http.client.HTTPConnection("127.0.0.1", shop, timeout=60)
    with socket.create_connection(("127.0.0.1", shop), timeout=60) as slow:
        for part in (whole[:20], whole[20:-5], whole[-5:]):
            slow.sendall(part)
            time.sleep(0.3)
        assert slow.recv(12) == b"HTTP/1.1 200"
    for _ in range(12):
        busy.request("POST", "/similar", b'{"item": "tea"}', {"Content-Type": "application/json"})
        assert busy.getresponse().read().startswith(b'{"model"')
        own = busy.sock
        time.sleep(0.25)
    assert own is busy.sock, "the connection was closed and opened anew"
    for connection, answers in zip(connections, halves.values(), strict=True):
        got = b""
        while part := connection.recv(1 << 16):  # ends when the service hangs up
            got += part
        assert got.count(b"HTTP/1.1 200") == answers
        connection.close()
    busy.close()


SLOW = """
import os, sys, time
from pathlib import Path
sys.argv[0] = sys.argv.pop(1)
sys.path.insert(0, str(Path(sys.argv[0]).parent))
import service
load = service.load
def slow(path):  # the file has been read, and may be replaced before it is served
    loaded = load(path)
    os.write(1, f"read {loaded.name}\\n".encode())  # whole, whatever the server prints meanwhile
    assert sys.stdin.readline() == "go on\\n"
    return loaded
service.load = slow
service.main()
"""


@pytest.mark.few(0)
def test_a_file_that_comes_while_another_is_loaded_is_noticed(models, tmp_path):
    path, item = tmp_path / "model.npz", {"item": models[0].item_ids_[0].item()}
    models[0].save(path)
    command = [sys.executable, "-c", SLOW, str(bench.SERVICE), str(path), "--port", "0"]
    with subprocess.Popen(
        [*command, "--poll", "0.05"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, bufsize=1,
    ) as process:  # fmt: skip
        try:
            first, second = (model.fingerprint() for model in models)
            output, give_up = [], time.monotonic() + 120
            threading.Thread(target=lambda: output.extend(process.stdout), daemon=True).start()

            def wait_for(words):
                while not any(words in line for line in output):
                    assert process.poll() is None and time.monotonic() < give_up, (words, output)
                    time.sleep(0.02)
                return output.pop(next(k for k, line in enumerate(output) if words in line))

            wait_for(f"read {first}")
            models[1].save(path)  # while the first is loaded, before anything is served
            process.stdin.write("go on\n")
            port = int(wait_for("serves").split()[0].rpartition(":")[2])
            wait_for(f"read {second}")
            assert ask(port, "/similar", item)[1]["model"] == first
            models[0].save(path)  # while the second is loaded
            process.stdin.write("go on\n")
            wait_for(f"read {first}")
            assert ask(port, "/similar", item)[1]["model"] == second
            process.stdin.write("go on\n")
            while ask(port, "/similar", item)[1]["model"] != first:
                assert time.monotonic() < give_up
                time.sleep(0.02)
        finally:
            process.kill()


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


def test_a_file_whose_permissions_are_put_right_is_looked_at_again(tmp_path):
    service, path = example(), tmp_path / "model.npz"
    path.write_bytes(b"saved by a job whose umask is 077")
    before = service.stamp(path)
    assert before == service.stamp(path)
    path.chmod(0o644 if path.stat().st_mode & 0o777 != 0o644 else 0o640)
    assert service.stamp(path) != before


def test_without_a_model_the_service_says_so_in_a_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [os.fspath(bench.SERVICE), os.fspath(tmp_path / "absent.npz")])
    with pytest.raises(SystemExit) as ended:
        example().main()
    said = capsys.readouterr().err
    assert ended.value.code == 1 and said.count("\n") == 1 and "absent.npz" in said


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
        bench.under_load(path, port, models, clients, seconds, swap_every, bad=0.05)
    )
    p50, p99 = np.percentile(latencies, [50, 99]) * 1e3
    print(f"{clients} in flight, {seconds} s: {len(latencies)} answers, p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    assert set(statuses) <= {200, "refused"} and statuses[200] > 10 * statuses["refused"], statuses
    assert swaps >= 2 and len(served) == 2, (swaps, served)
    assert len(latencies) > 2 * clients


def test_every_answer_is_right_while_the_model_changes(service, models, amount):
    check_load(service, models, amount(40, 200), amount(2, 30), swap_every=amount(0.4, 2))
