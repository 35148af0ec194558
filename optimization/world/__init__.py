"""The renter's world between decisions (M12): grants, losses, boots, restarts and checkpoints, in seconds.

`simulation` is a run of a job, `replay` lets a policy decide in it; the steps are compiled in `kernels.world`.
"""
