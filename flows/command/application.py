"""Words of a command line in, an exit code out; errors of the user end in one line and exit code 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from cyclopts import App, CycloptsError, Parameter

from flows.command.answer import Answer, deliver
from flows.command.session import Output, shown_default

#: Exit codes: a user's error, and a command that was stopped (128 and the number of the signal).
USER_ERROR, STOPPED, NOBODY_READS = 2, 130, 141
HELP: Final = ("--help", "-h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """All commands of a program: words -> ``module:function``, imported when the command is called.

    ``groups`` are the first words of commands of two, with their help.
    """

    name: str
    help: str
    version: Callable[[], str]
    commands: Mapping[str, str]
    groups: Mapping[str, str]

    def run(self, words: Sequence[str]) -> int:
        """Run one command; returns the exit code, with a user's error in one line on standard error."""
        try:
            return self._run(list(words))
        except CycloptsError as error:
            return self._complain(" ".join(str(error).split()))
        except (
            _user_errors()
        ) as error:  # looked up when something is raised: what it needs is more than a help needs
            return self._complain(str(error))
        except KeyboardInterrupt:
            return self._complain("stopped", STOPPED)
        except BrokenPipeError:  # `| head`: who reads has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return NOBODY_READS

    def _run(self, words: list[str]) -> int:
        app = self.app(known=not words or words[-1] in HELP or words[-1] in self.groups)
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        result = command(*bound.args, **bound.kwargs)
        if not isinstance(
            result, Answer
        ):  # help and version print themselves; a server answers nothing at its end
            return USER_ERROR if self._only_overview(words) else 0
        output = next((value for value in bound.arguments.values() if isinstance(value, Output)), None)
        code = deliver(result, output)
        sys.stdout.flush()
        return code

    def app(self, *, known: bool = True) -> App:
        """The cyclopts application; ``known`` imports every command, so that overviews say what each does."""
        defaults = Parameter(negative=(), show_default=shown_default)
        settings: dict[str, Any] = {
            "default_parameter": defaults,
            "suppress_keyboard_interrupt": False,
            "help_format": "plaintext",
        }
        app = App(name=self.name, help=self.help, version=self.version, **settings)
        inner: dict[str, App] = {}
        for place, (words, path) in enumerate(self.commands.items()):
            first, _, second = words.partition(" ")
            if first in self.groups and first not in inner:
                inner[first] = App(
                    name=first, help=self.groups[first], version_flags=(), sort_key=place, **settings
                )
                app.command(inner[first])
            if first in inner and not second:
                inner[first].default(_function(path))
                continue
            owner, name = (inner[first], second) if second else (app, first)
            owner.command(_function(path) if known else path, name=name, sort_key=place)
        return app

    def _only_overview(self, words: Sequence[str]) -> bool:
        """Whether no command was given: what was printed then is an overview that nobody asked for."""
        return not words or (len(words) == 1 and words[0] in self.groups and words[0] not in self.commands)

    def _complain(self, text: str, code: int = USER_ERROR) -> int:
        print(f"{self.name}: {text}", file=sys.stderr)
        return code


def _function(path: str) -> Callable[..., Any]:
    """The function at ``module:function``."""
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _user_errors() -> type[Exception]:
    from warehouse.errors import SlackwaterError

    return SlackwaterError
