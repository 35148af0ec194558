"""Compiled code, and the rules of a slot in plain Python (`rules`).

`rules` is plain Python and may be called anywhere. The other modules contain numba functions:
kernels made with `compiling.kernel`, and their parts made with `compiling.part`; they may call each
other and the rules across files. The package imports nothing else of the project, so that a hash of
its sources shows whether compiled code on disk is up to date. Importing this package does not
import numba; importing any of its modules except `rules` does.
"""
