"""Experiments on measured data, comparisons with published methods, and the simulations for both.

Part of the repository, not of the wheel. The product does not import this package.
"""
