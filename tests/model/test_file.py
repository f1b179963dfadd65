"""Damaged and hostile model files: refused with a reason; no crash, no wrong model, no memory for nothing."""

from __future__ import annotations

from instruments import model_files

BATCH = 500
ME = "instruments.model_files"


def test_damaged_model_files(zygote, tally):
    count = tally("mutations of model files", 500, 50_000)
    content = model_files.good()
    for start in range(0, count.figure, BATCH):
        outcome = zygote.run(f"{ME}:batch", content, start, start + BATCH)
        if not outcome.returned:
            count.add(outcome.seconds, f"seeds {start}..{start + BATCH - 1}: {outcome}", BATCH)
            continue
        count.add(outcome.seconds, None, BATCH - len(outcome.value))
        for fault in outcome.value:
            count.add(0.0, fault)
    count.check()


def test_the_damage_fools_whoever_trusts_the_file(zygote):
    outcome = zygote.run(f"{ME}:batch", model_files.good(), 0, 500, True)
    assert outcome.returned, outcome
    assert sum("silently wrong" in fault for fault in outcome.value) >= 5
    assert sum("untyped" in fault for fault in outcome.value) > 100


def test_crafted_model_files(zygote, tally, amount):
    """In one process; those of the stress tests in a process each, so that a crash names its file."""
    count = tally("crafted model files", 40, 40)
    content = model_files.good()
    assert zygote.run(f"{ME}:load_crafted", [model_files.rebuilt(content)]).value == ["loaded"]
    files = model_files.crafted(content)
    for part in amount([files], [[file] for file in files]):
        outcome = zygote.run(f"{ME}:load_crafted", [file for _, file in part])
        answers = outcome.value if outcome.returned else [str(outcome)] * len(part)
        for (name, _), answer in zip(part, answers, strict=True):
            refused = answer in ("ModelFileError", "OtherFormatError")  # the latter is a kind of the former
            count.add(outcome.seconds, None if refused else f"{name}: {answer}")
    count.check()
