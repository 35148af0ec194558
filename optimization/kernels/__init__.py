"""Everything compiled, and the arithmetic of a slot once (`rules`).

`rules` is plain Python and may be called anywhere; the other modules are numba functions made with `compiling.kernel`, and
their parts, made with `compiling.part`, which may call each other and the rules across files. Nothing here imports the rest
of the project, so that the hash of this folder's sources says whether compiled code on disk is still good. Importing this
package does not import numba; importing any module of it but `rules` does.
"""
