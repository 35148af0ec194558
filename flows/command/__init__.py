"""The command kit: a command is one function with its options that returns an `Answer`.

What is shared is declared once: the options of `Session`, printing, ``--json``, ``--html``, exit codes, errors and progress.
"""

from flows.command.answer import Answer
from flows.command.application import Program
from flows.command.session import Output, Query, QueryAt, Session, Warehouse, option

__all__ = [
    "Answer",
    "Output",
    "Program",
    "Query",
    "QueryAt",
    "Session",
    "Warehouse",
    "option",
]
