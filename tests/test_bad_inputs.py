"""Every bad input, in a process of its own: no crash, a typed error that says where, at once."""

from __future__ import annotations

import re

from instruments.bad_inputs import CASES

SECONDS = 2.0


def test_bad_inputs(zygote, tally, amount):
    chosen = range(0, len(CASES), amount(5, 1))
    count = tally("bad inputs", len(chosen), 150)
    assert len(CASES) >= 150
    for number in chosen:
        name, _, pattern = CASES[number]
        outcome = zygote.run("instruments.bad_inputs:run", number)
        fault = None
        if outcome.error is None:
            fault = f"{name}: {outcome}"
        else:
            kinds, message = outcome.error
            if "RgalsError" not in kinds:
                fault = f"{name}: untyped {outcome}"
            elif not re.search(pattern, message, re.DOTALL):
                fault = f"{name}: {message!r} does not say {pattern!r}"
            elif outcome.seconds > SECONDS:
                # Once more: the machine may have been busy.
                again = zygote.run("instruments.bad_inputs:run", number)
                if again.seconds > SECONDS:
                    fault = f"{name}: took {again.seconds:.1f} s"
                outcome = again
        count.add(outcome.seconds, fault)
    count.check()
