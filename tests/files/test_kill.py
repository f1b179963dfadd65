"""kill -9 at any moment: the old or the new file, and a resumed fit equals an uninterrupted one."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from helpers import interactions
from instruments import saving

from rgals import RGALS, Checkpoint, CheckpointError, ModelFileError, ParameterError
from rgals.cli import main
from rgals.files.archive import load_npz

ME = "instruments.saving"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kill")
    for model, kind in zip(saving.models(), ("old", "new"), strict=True):
        model.save(folder / f"m.{kind}")
    return folder


def kill_while_saving(zygote, folder, count, naive=False):
    """Faults, and how often the old and the new file were found, after so many kills."""
    path = str(folder / "m")
    (folder / "m").write_bytes((folder / "m.old").read_bytes())
    if naive:
        zygote.run(f"{ME}:save_for_ever", path, True, signal_after=(signal.SIGKILL, 0.3))
    rng = np.random.default_rng(9)
    found, left = [], 0
    once = zygote.run(f"{ME}:save_once", path, naive).seconds  # also says how fast the machine is now
    for number in range(count):
        delay = once * float(rng.uniform(0.3, 3.0))
        outcome = zygote.run(f"{ME}:save_for_ever", path, naive, signal_after=(signal.SIGKILL, delay))
        assert outcome.signal == signal.SIGKILL, outcome
        left = max(left, len(saving.stray(folder)))
        found.append(saving.which(path, naive))
        yield number, found[-1], outcome.seconds, left


def test_kill_while_saving(zygote, folder, tally):
    count = tally("kill -9 while saving", 5, 200)
    seen, most = set(), 0
    for number, found, seconds, left in kill_while_saving(zygote, folder, max(count.figure, 40)):
        if count.cases >= count.figure and seen == {"old", "new"} and most:
            break
        seen.add(found)
        most = max(most, left)
        count.add(seconds, None if found in ("old", "new") else f"kill {number}: {found}")
        # The leftover of this kill, and of no other: each writer removes those before it.
        if left > 1:
            count.failures.append(f"kill {number}: {left} temporary files")
    assert seen == {"old", "new"}, "kills must fall before and after a replacement"
    assert most == 1, "kills must fall into the writing too"
    RGALS.load(folder / "m.new").save(folder / "m")
    assert not saving.stray(folder), "the next save removes what a killed one left"
    count.check()


def test_a_killed_update_leaves_yesterdays_model_or_todays(zygote, folder, tally, tmp_path):
    count = tally("kill -9 while updating", 3, 60)
    path = str(tmp_path / "m")
    for name in ("m", "m.old", "m.new"):
        (tmp_path / name).write_bytes((folder / "m.old").read_bytes())
    zygote.run(f"{ME}:update", path + ".new")  # also compiles
    once = zygote.run(f"{ME}:update", path).seconds
    rng, seen, number = np.random.default_rng(12), set(), 0
    while number < count.figure or (len(seen) < 2 and number < 32):
        number += 1
        once *= 1.3 if seen == {"old"} else 1.0  # other work slows the update down
        after = (signal.SIGKILL, once * float(rng.uniform(0.5, 3.0)))
        outcome = zygote.run(f"{ME}:update_for_ever", path, signal_after=after)
        assert outcome.signal == signal.SIGKILL, outcome
        found = saving.which(path, False)
        seen.add(found)
        count.add(outcome.seconds, None if found in ("old", "new") else f"kill {number}: {found}")
    assert seen <= {"old", "new"} and len(seen) == 2, "kills must fall before and after an update"
    count.check()


def test_a_naive_save_is_caught(zygote, folder):
    kills = kill_while_saving(zygote, folder, 25, naive=True)
    assert any("broken" in found for _, found, _, _ in kills)


def test_kill_while_fitting(zygote, tmp_path, tally):
    count = tally("kill -9 while fitting", 6, 100)
    rng = np.random.default_rng(10)
    wanted = {}
    kills = resumed = run = 0
    while count.cases < count.figure:
        run += 1
        kind = run % len(saving.SETTINGS)
        if kind not in wanted:
            wanted[kind] = zygote.run(f"{ME}:fit", kind, None)
            assert wanted[kind].returned, wanted[kind]
        folder = str(tmp_path / f"fit{run}")
        for attempt in range(4):  # killed up to three times, then left alone
            delay = float(rng.uniform(0.0, 1.1)) * saving.ITERATIONS * saving.PAUSE
            after = None if attempt == 3 else (signal.SIGKILL, delay, "ready")
            outcome = zygote.run(f"{ME}:fit", kind, folder, signal_after=after)
            if outcome.signal != signal.SIGKILL:
                break
            kills += 1
            resumed += os.path.exists(os.path.join(folder, Checkpoint.name))
            count.add(outcome.seconds)
        if not outcome.returned:
            count.failures.append(f"fit {run}: {outcome}")
            continue
        if saving.SETTINGS[kind].get("random_state", 0) is None:
            # Nobody knows what its seed would have given: the file does.
            seed = load_npz(os.path.join(folder, Checkpoint.name), expected=_spec())[1]["seed"]
            wish = straight(seed)
        else:
            wish = wanted[kind].value
        if outcome.value != wish:
            count.failures.append(f"fit {run} ({saving.SETTINGS[kind]}): other bytes than without the kill")
        if saving.stray(folder):
            count.failures.append(f"fit {run}: temporary files are left")
        if run > 20 * count.figure:
            break
    assert resumed > kills / 4, "kills must fall behind the first checkpoint"
    count.check()


def _spec():
    from rgals.training.fit import CHECKPOINT

    return CHECKPOINT


def straight(seed: int):
    """The uninterrupted fit from a start that a seed of no integer parameter gave."""
    start = np.random.default_rng(seed).standard_normal((200, 8), np.float32) * np.float32(8**-0.5)
    model = RGALS(K=8, n_iter=12, warm_start=True)
    X = interactions(200, 60, seed=3)
    model.fit(X)
    object.__setattr__(model._snapshot, "user_factors", start)
    model.fit(X)
    objectives = [record["objective"] for record in model.history_]
    return model.user_factors_.tobytes(), model.item_factors_.tobytes(), objectives


# ------------------------------------------------------------------ checkpoints


@pytest.fixture(scope="module")
def X():
    return interactions(60, 30, seed=5)


def fit(X, n_iter=4, folder=None, **params):
    params = {"K": 3, "random_state": 0, **params}
    return RGALS(n_iter=n_iter, **params).fit(X, checkpoint=folder)


def test_a_fit_can_be_prolonged_from_its_checkpoint(X, tmp_path):
    fit(X, 3, tmp_path)
    seen = []
    longer = RGALS(K=3, n_iter=6, random_state=0, n_jobs=1)
    longer.fit(X, checkpoint=tmp_path, callbacks=lambda now: seen.append(now.iteration))
    assert seen == [4, 5, 6]
    whole = fit(X, 6)
    assert whole.item_factors_.tobytes() == longer.item_factors_.tobytes()
    assert whole.user_factors_.tobytes() == longer.user_factors_.tobytes()
    assert [r["objective"] for r in whole.history_] == [r["objective"] for r in longer.history_]
    assert os.listdir(tmp_path) == [Checkpoint.name]


def test_a_fit_that_a_rule_has_ended_stays_ended(X, tmp_path):
    first = fit(X, 30, tmp_path, tol=0.05)
    assert first.n_iter_ < 30
    again = fit(X, 30, tmp_path, tol=0.05)
    assert again.n_iter_ == first.n_iter_
    assert again.item_factors_.tobytes() == first.item_factors_.tobytes()


def test_the_interval_decides_when_it_is_written(X, tmp_path):
    written = []
    path = tmp_path / Checkpoint.name

    def watch(now):
        written.append(path.stat().st_mtime_ns if path.exists() else 0)

    RGALS(K=3, n_iter=7, random_state=0).fit(X, checkpoint=Checkpoint(tmp_path, every=3), callbacks=watch)
    changed = [b != a for a, b in zip(written, written[1:], strict=False)]
    assert changed == [False, False, True, False, False, True]  # seen one iteration later
    assert load_npz(path, expected=_spec())[1]["iteration"] == 7


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"K": 4}, "K is 4"),
        ({"reg": 0.1}, "reg is 0.1"),
        ({"reg_exponent": 0.5}, "reg_exponent"),
        ({"loss": "ials"}, "loss"),
        ({"dtype": "float64"}, "dtype"),
        ({"solver": "pcg"}, "solver"),
        ({"init_scale": 0.1}, "init_scale"),
        ({"tol": 0.1}, "tol"),
        ({"random_state": 1}, "random_state"),
        ({"random_state": None}, "random_state"),
        ({"early_stopping": True}, "early_stopping"),
        ({"n_iter": 2}, "beyond the 2 that are asked for"),
        ("one interaction more", "X is"),
        ("one row more", "shape is"),
        ("validation", "metric|validation"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused(X, tmp_path, change, word):
    fit(X, 3, tmp_path)
    before = (tmp_path / Checkpoint.name).read_bytes()
    params = change if isinstance(change, dict) else {}
    other, more = X.toarray(), {}
    if change == "one interaction more":
        other[0, np.argmin(other[0])] = 1.0
    elif change == "one row more":
        other = np.vstack([other, other[:1]])
    elif change == "validation":
        more = {"validation": (other == 0).astype(float)}
    model = RGALS(**{"K": 3, "random_state": 0, "n_iter": 6, **params})
    with pytest.raises(CheckpointError, match=word):
        model.fit(other, checkpoint=tmp_path, **more)
    assert not hasattr(model, "n_iter_")
    assert (tmp_path / Checkpoint.name).read_bytes() == before


def test_a_damaged_checkpoint_is_refused(X, tmp_path):
    fit(X, 3, tmp_path)
    path = tmp_path / Checkpoint.name
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(ModelFileError, match=Checkpoint.name):
        fit(X, 6, tmp_path)


def test_a_model_in_place_of_a_checkpoint_is_named_as_such(X, tmp_path):
    model = RGALS(K=4, n_iter=2, random_state=0).fit(X)
    model.save(tmp_path / "checkpoint.npz")  # of more arrays than a checkpoint
    with pytest.raises(ModelFileError, match="not a rgals-checkpoint file but 'rgals-model'"):
        model.fit(X, checkpoint=tmp_path)


def test_an_interval_without_a_folder_is_an_error(X):
    with pytest.raises(ParameterError, match="every 3 iterations need a folder"):
        Checkpoint(every=3)
    with pytest.raises(ParameterError, match="checkpoint=3"):
        RGALS(K=2).fit(X, checkpoint=3)
    with pytest.raises(ParameterError, match="svd"):
        RGALS(K=2, solver="svd", loss=saving_loss()).fit(X, checkpoint="never-made")
    assert not os.path.exists("never-made")


def test_the_command_line_goes_on_from_a_checkpoint(tmp_path, capsys):
    data = tmp_path / "ratings.csv"
    data.write_text("user,item\n" + "".join(f"u{k % 40},i{k * k % 31}\n" for k in range(600)))
    common = ["fit", str(data), "--K", "3", "--seed", "0", "-q"]
    keep = ["--checkpoint", str(tmp_path / "kept"), "--checkpoint-every", "2"]
    assert main([*common, "--n-iter", "3", "-o", str(tmp_path / "a"), *keep]) == 0
    assert main([*common, "--n-iter", "6", "-o", str(tmp_path / "b"), *keep]) == 0
    assert main([*common, "--n-iter", "6", "-o", str(tmp_path / "c")]) == 0
    resumed, straight = RGALS.load(tmp_path / "b"), RGALS.load(tmp_path / "c")
    assert resumed.item_factors_.tobytes() == straight.item_factors_.tobytes()
    assert main([*common, "-o", str(tmp_path / "d"), "--checkpoint-every", "2"]) == 1
    assert "give --checkpoint FOLDER" in capsys.readouterr().err


def saving_loss():
    from rgals import RG2

    return RG2(alpha=0.0)
