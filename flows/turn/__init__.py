"""One turn of the loop. `stages` says in which order: read (`context`), ingest, forecast, decide, score, report.

Each stage reads values, computes, and writes its rows at its end; `command` and `answer` ask more of the same functions.
"""
