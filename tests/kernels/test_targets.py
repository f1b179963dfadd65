"""Code for processors and systems that are not here: from the kernels' instructions to object code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from instruments.harness import python

TARGETS = str(Path(__file__).parents[1] / "instruments" / "targets.py")
#: What the C library of every system has: clearing memory; multiply-adds where the processor has none.
OUTSIDE = {"memset", "bzero", "fma", "fmaf"}
#: Name and features as numba is told them, and a multiply-add of that processor, if it has one.
PROCESSORS = {
    "apple-m1": ("", "fmla"),
    "neoverse-n1": ("", "fmla"),
    "haswell": ("+avx2,+fma", "vfmadd213ps"),
    "skylake-avx512": ("+avx2,+fma,+avx512f", "vfmadd213ps"),
    "x86-64-v2": ("", None),
}
REGISTERS = {"haswell": {"xmm", "ymm"}, "skylake-avx512": {"xmm", "ymm", "zmm"}, "x86-64-v2": {"xmm"}}
SYSTEMS = [
    ("aarch64-apple-darwin", "apple-m1"),
    ("aarch64-unknown-linux-gnu", "neoverse-n1"),
    ("x86_64-unknown-linux-gnu", "haswell"),
    ("x86_64-unknown-linux-gnu", "x86-64-v2"),
    ("x86_64-apple-darwin", "haswell"),
    ("x86_64-pc-windows-msvc", "haswell"),
    ("x86_64-pc-windows-msvc", "skylake-avx512"),
    ("x86_64-pc-windows-msvc", "x86-64-v2"),
]


def check(real: str, triple: str, cpu: str) -> None:
    """Generate the code in a process that takes itself for that processor's; judge what it calls and uses."""
    features, fused = PROCESSORS[cpu]
    done = python(TARGETS, real, triple, cpu, NUMBA_CPU_NAME=cpu, NUMBA_CPU_FEATURES=features)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if "missing" in found:
        pytest.skip(found["missing"])
    assert found["bytes"] > 10_000
    outside = {name.removeprefix("_") if "apple" in triple else name for name in found["outside"]}
    assert outside <= (OUTSIDE if fused is None else OUTSIDE - {"fma", "fmaf"})
    assert set(found["registers"]) == REGISTERS.get(cpu, set())
    if fused is not None:
        assert (fused if real == "float32" else fused.replace("ps", "pd")) in found["instructions"]


@pytest.mark.parametrize(
    ("real", "triple", "cpu"),
    [("float64", *SYSTEMS[0]), ("float64", "x86_64-pc-windows-msvc", "haswell")],
)
@pytest.mark.few(0)
def test_kernels_become_object_code_for_other_systems(real, triple, cpu):
    check(real, triple, cpu)
