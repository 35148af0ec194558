"""Compilers for kernels and their parts that emit machine code only for kernels, a quarter faster than numba's own.

Kernels run under the lock of the interpreter, so they count references without atomic instructions, which took half of the
time of `induct_held` and more of `choose_market`.

They replace numba's last step, of which numba promises nothing: `compiling` uses them with the version that they were
tested with.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba._dynfunc import make_function
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.runtime import nrtdynmod
from numba.core.typed_passes import NativeLowering


class PartLibrary(JITCodeLibrary):
    """The code of a part, which kernels link: LLVM emits machine code for it as a part of them only."""

    def _finalize_final_module(self) -> None:
        """Leave the module at LLVM's optimized code. Kernels need it so: linked without, they ran up to three times as long."""
        self._finalized = True


def count_references(module: Any, change: str) -> Any:
    """Add a function to an LLVM module that changes a count by "add" or "sub" of 1 and returns the new count."""
    word = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(word, [word.as_pointer()]), name=f"kernel_{change}")
    builder = ir.IRBuilder(function.append_basic_block())
    new = getattr(builder, change)(builder.load(function.args[0]), ir.Constant(word, 1))
    builder.store(new, function.args[0])
    builder.ret(new)
    return function


@cache
def plain_counts(codegen: Any) -> PartLibrary:
    """Return numba's functions that count references, on plain instructions."""
    library = PartLibrary(codegen, "plain_counts")
    module = library.create_ir_module("plain_counts")
    nrtdynmod._define_nrt_incref(module, count_references(module, "add"))
    nrtdynmod._define_nrt_decref(module, count_references(module, "sub"))
    library.add_ir_module(module)
    library.finalize()
    return library


class KernelLibrary(JITCodeLibrary):
    """The code of a kernel, which counts references on plain instructions."""

    def finalize(self) -> None:
        """Link and compile: of functions with the same name LLVM takes the first."""
        self._linking_libraries.insert(0, plain_counts(self._codegen))
        super().finalize()


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(NativeLowering):
    """numba's lowering to LLVM code, with an entry point from Python."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower ``state`` with the entry point. Until here kernels and parts have the same options: numba compiles the functions
        that both call once.
        """
        state.library = KernelLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        state.flags.no_cpython_wrapper = False
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class PartLowering(NativeLowering):
    """numba's lowering to LLVM code, into a `PartLibrary`."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Lower ``state``. Callers find its code by an entry point, here an empty one."""
        state.library = PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state.cr
        entry = make_function(
            lowered.fndesc.lookup_module(), lowered.fndesc.qualname, "", 0, lowered.env, (state.library,)
        )
        state.targetctx.insert_user_function(entry, lowered.fndesc, [state.library])
        state.cr = lowered._replace(cfunc=entry)
        return True


class KernelCompiler(CompilerBase):
    """numba's compiler for kernels."""

    lowering: type[NativeLowering] = KernelLowering

    def define_pipelines(self) -> list[Any]:
        """Return numba's passes with the lowering replaced."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (self.lowering if step is NativeLowering else step, name) for step, name in passes.passes
        ]
        passes.finalize()
        return [passes]


class PartCompiler(KernelCompiler):
    """numba's compiler for parts."""

    lowering = PartLowering
