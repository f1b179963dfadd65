"""Kernels as machine code of another processor: ``python targets.py REAL TRIPLE CPU``.

Prints a JSON: how long the object code is, what it calls outside, and the instructions that it uses. To be
started with that processor as numba's, whose features decide about registers (`rgals.kernels.vectors`).
"""

from __future__ import annotations

import json
import re
import sys

import llvmlite.binding as llvm
from numba import types

from rgals.kernels import library


def machine(triple: str, cpu: str) -> llvm.TargetMachine:
    """As numba makes it, but for a code model in which calls can be read."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    reloc = "static" if triple.startswith("x86") else "default"
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, opt=3, reloc=reloc, codemodel="small", jit=True
    )


def optimise(module: llvm.ModuleRef, target: llvm.TargetMachine) -> None:
    """All of LLVM's passes, by the interface that this llvmlite has."""
    if hasattr(llvm, "create_pass_builder"):
        builder = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=3))
        builder.getModulePassManager().run(module, builder)
        return
    builder, passes = llvm.create_pass_manager_builder(), llvm.create_module_pass_manager()
    builder.opt_level = 3
    target.add_analysis_passes(passes)
    builder.populate(passes)
    passes.run(module)


def main(real: str, triple: str, cpu: str) -> dict:
    """Generate code of all kernels for an element type."""
    try:
        target = machine(triple, cpu)
    except RuntimeError as error:
        return {"missing": f"this llvmlite makes no code for {triple}: {error}"}
    module = llvm.parse_assembly(str(library.module(getattr(types, real))))
    module.triple, module.data_layout = triple, str(target.target_data)
    module.verify()
    optimise(module, target)
    text = target.emit_assembly(module)
    named = {name.strip('"') for name in re.findall(r"^([^\s:#;]+):", text, re.MULTILINE)}
    called = {
        name.strip('"').partition("@")[0]
        for name in re.findall(
            r'^\s+(?:callq?|jmp|bl?)\s+("[^"]+"|[\w.$@]+)\s*(?:[#;/].*)?$', text, re.MULTILINE
        )
    }
    return {
        "bytes": len(target.emit_object(module)),
        "outside": sorted(name for name in called - named if not name.startswith((".L", "L"))),
        "instructions": sorted(set(re.findall(r"^\s+([a-z]\w+)", text, re.MULTILINE))),
        "registers": sorted(set(re.findall(r"\b([xyz]mm)\d+\b", text))),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
