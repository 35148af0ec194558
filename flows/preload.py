"""Import the program when a Dask worker starts (``dask worker --preload slackwater.flows.preload``).

Otherwise the first task of every worker does so, which takes up to a minute on a slow machine.
"""

from slackwater.flows.turn import stages

__all__ = ["stages"]
