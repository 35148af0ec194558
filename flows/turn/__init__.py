"""One turn of the loop: a pass through ingest, forecast, decide, deliver, score and report.

`stages` defines the stages and their order; `context` reads their inputs. Each stage reads values,
computes, and writes its rows at the end. `command` and `answer` use the same functions for the
other commands.
"""
