"""One turn of the loop: ingest, forecast, decide, deliver, score and report, in the order of `stages`.

Of each stage a module has a reader (``read_...``), which returns facts as a frozen dataclass, and a function that
computes `results.Results` from these facts alone; `results.write` stores them in one transaction.
"""
