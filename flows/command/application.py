"""Words of a command line in, an exit code out; errors of the user end in one line and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cyclopts import App, CycloptsError, Parameter

from flows.command.answer import Answer, deliver
from flows.command.options import shown_default
from flows.command.session import Output

#: Exit codes: a user's error, and a command that was stopped (128 and the number of the signal).
USER_ERROR, STOPPED, NOBODY_READS = 2, 130, 141
HELP: Final = ("--help", "-h")


def new_app(
    name: str, help: str, *, version: str = "", commands: Mapping[str, str], groups: Mapping[str, str]
) -> App:
    """An application of ``commands`` (words -> ``module:function``), which are imported when they are called.

    ``groups`` are the first words of commands of two, with their help.
    """
    defaults = Parameter(negative=(), show_default=shown_default)
    app = App(
        name=name, help=help, version=version, default_parameter=defaults, suppress_keyboard_interrupt=False
    )
    inner = {}
    for word, text in groups.items():
        inner[word] = App(name=word, help=text, version_flags=(), default_parameter=defaults)
        app.command(inner[word])
    for words, path in commands.items():
        first, _, second = words.partition(" ")
        if second:
            inner[first].command(path, name=second)
        elif first in inner:
            inner[first].default(_called(path))
        else:
            app.command(path, name=first)
    return app


def _called(path: str) -> Any:
    """The function at ``module:function``."""
    from importlib import import_module

    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def invoke(app: App, words: Sequence[str]) -> int:
    """Run one command; returns the exit code, with what goes wrong on the user's side in one line on standard error."""
    try:
        return _run(app, list(words))
    except CycloptsError as error:
        return _complain(" ".join(str(error).split()))
    except (
        _user_errors()
    ) as error:  # looked up when something is raised: the errors' package loads more than a help needs
        return _complain(str(error))
    except KeyboardInterrupt:
        return _complain("stopped", STOPPED)
    except BrokenPipeError:  # `| head`: who reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS


def _run(app: App, words: list[str]) -> int:
    asked = any(word in HELP for word in words)
    if asked or not words or words[-1] in app:
        _know_commands(app, words)
    command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    result = command(*bound.args, **bound.kwargs)
    if not isinstance(
        result, Answer
    ):  # help and version print themselves; a server answers with nothing at its end
        return USER_ERROR if _only_groups(app, words) else 0
    output = next((value for value in bound.arguments.values() if isinstance(value, Output)), None)
    code = deliver(result, output)
    sys.stdout.flush()
    return code


def _know_commands(app: App, words: Sequence[str]) -> None:
    """Import the commands that an overview lists, so that it can say what they do."""
    inner = app[words[0]] if words and words[0] in app else app
    for name in inner:
        inner[name]  # resolving a command reads its docstring


def _only_groups(app: App, words: Sequence[str]) -> bool:
    """Whether no command was given: what was printed then is an overview, which nobody asked for."""
    return not words or (len(words) == 1 and words[0] in app and app[words[0]].default_command is None)


def _user_errors() -> type[Exception]:
    from warehouse.errors import SlackwaterError

    return SlackwaterError


def _complain(text: str, code: int = USER_ERROR) -> int:
    print(f"slackwater: {text}", file=sys.stderr)
    return code
