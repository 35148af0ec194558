"""Acting on decisions: launch, keep and stop the instances that the newest decision of each job states.

`loop` makes passes over all jobs, `targets` computes the instances that a job should have, `revising` decides again after a
loss of spot, and `drivers` launch and stop instances.
"""
