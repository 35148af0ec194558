"""Stored code of kernels, loaded without numba's compiler.

Before it loads stored code numba imports its whole compiler, with SciPy's linear algebra, and reads the LLVM code that other
functions would link: three quarters of the time of a first decision. It promises nothing of these steps: `compiling` uses this
module with the version that it was tested with.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import binding
from numba.core import entrypoints
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompileResult
from numba.core.runtime import nrt

#: Parts of numba that its type hints do not declare.
_RESULT: Any = CompileResult
_RUNTIME: Any = nrt


@cache
def define_helpers() -> None:
    """Define the functions of numba's memory management that machine code calls, as numba does before it compiles."""
    for name, address in _RUNTIME._nrt.c_helpers.items():
        binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


class StoredLibrary(JITCodeLibrary):
    """Stored machine code of a kernel; its LLVM code is read only if another kernel links it."""

    bitcode = b""

    @classmethod
    def of(cls, target: Any, name: str, code: tuple[bytes, bytes], entries: set[str]) -> StoredLibrary:
        """Return the library with machine and LLVM ``code``, which defines the functions ``entries``."""
        library = cls(target.codegen(), name)
        library.enable_object_caching()
        library._set_compiled_object(code[0])
        library.bitcode = code[1]
        library._finalize_final_module()
        library._codegen._engine._defined_symbols |= entries
        return library

    def _get_module_for_linking(self) -> Any:
        """Return the LLVM code, read at the first call."""
        if self._shared_module is None:
            self._shared_module = binding.parse_bitcode(self.bitcode)
        return self._shared_module


class KernelData(CompileResultCacheImpl):
    """The form in which a kernel is stored: numba's, without its annotated source and empty environments."""

    def reduce(self, cres: Any) -> tuple[Any, ...]:
        """Return the stored parts of a compiled kernel. An environment without constants is not read by machine code."""
        *parts, _, reload_init, environments = super().reduce(cres)
        return (*parts, "", reload_init, tuple(each for each in environments if each.consts))

    def rebuild(self, target_context: Any, payload: tuple[Any, ...]) -> CompileResult:
        """Return the kernel of stored parts."""
        define_helpers()
        (name, _, code), fndesc, environment, signature, mode, lifted, annotation, reload_init, others = (
            payload
        )
        entries = {fndesc.llvm_func_name, fndesc.llvm_cpython_wrapper_name}
        library = StoredLibrary.of(target_context, name, code, entries)
        for each in others:
            library.codegen.set_env(each.env_name, each)
        result: CompileResult = _RESULT(
            target_context=target_context,
            typing_context=target_context.typing_context,
            library=library,
            environment=environment,
            entry_point=target_context.get_executable(library, fndesc, environment),
            fndesc=fndesc,
            type_annotation=annotation,
            signature=signature,
            objectmode=mode,
            lifted=lifted,
            typing_error=None,
            call_helper=None,
            metadata=None,
            reload_init=reload_init,
            referenced_envs=others,
        )
        return result


class KernelCache(FunctionCache):
    """numba's cache of a kernel, which prepares the compiler only if no code is stored."""

    _impl_class = KernelData

    def load_overload(self, sig: Any, target_context: Any) -> CompileResult | None:
        """Return the stored code of a signature, None if there is none."""
        with self._guard_against_spurious_io_errors():
            found: CompileResult | None = self._load_overload(sig, target_context)
        if found is None:
            entrypoints.init_all()
        return found
