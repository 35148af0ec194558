"""Acting on decisions: instances are brought to the newest decision of each job and kept there.

`loop` is a pass over all jobs, `targets` the instances that each should have, `revising` the decision after a loss of spot,
and `drivers` launch and stop.
"""
