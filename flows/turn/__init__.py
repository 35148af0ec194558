"""One turn of the loop: a pass through ingest, forecast, decide, deliver, score and report.

`stages` runs the stages in order. Of each stage a module has a reader (``read_...``), which returns
facts as a frozen dataclass, and a function that computes `results.Results` from these facts alone:
`forecast`, `decide`, `score`. `results.write` stores the results of a stage in one transaction.
`context` holds the turn; `histories`, `places`, `issued`, `work` and `pool` read histories, the
markets of jobs, issued forecasts, the jobs and markets of the turn, and the policies. `command` and
`answer` use the same functions for the other commands.
"""
