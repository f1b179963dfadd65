"""The command line: ``rgals COMMAND``, as `COMMANDS` lists them.

A command is a function, decorated with its arguments, whose docstring is its help. Results go to standard
output, everything else to standard error.
"""

import argparse
import functools
import inspect
import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from rgals.cli import about, compare, demo, fit, saved
from rgals.cli._options import Command, declare
from rgals.runtime.errors import RgalsError
from rgals.runtime.version import __version__

COMMANDS = {
    each.name: each
    for module in (demo, fit, saved, compare, about)
    for each in vars(module).values()
    if isinstance(each, Command)
}

OK, FAILED, INTERRUPTED = 0, 1, 130


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    layout = functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=28)
    parser = argparse.ArgumentParser(
        prog="rgals",
        description="Top-K recommendation from implicit feedback by exact alternating least squares.",
        epilog="Exit codes: 0 done, 1 an error that is named on one line or a reader that closed the pipe,\n"
        "2 wrong usage, 130 interrupted.\n"
        "`rgals COMMAND --help` shows the options of a command with examples.",
        formatter_class=layout,
        allow_abbrev=False,  # an abbreviation may be meant as another option
    )
    parser.add_argument("--version", action="version", version=f"rgals {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        summary, _, details = inspect.cleandoc(command.run.__doc__ or "").partition("\n")
        about: dict[str, Any] = {"description": summary, "epilog": details.strip(), "allow_abbrev": False}
        added = commands.add_parser(name, help=summary.rstrip("."), formatter_class=layout, **about)
        declare(added, command.arguments)
        added.add_argument("-q", "--quiet", action="store_true", help="no progress, no summary")
        added.add_argument("--debug", action="store_true", help="show the traceback of an error")
        added.set_defaults(run=command.run, parser=added)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; ``argv`` by default is that of the process.

    The exit code is 0 if it succeeds, 1 after an error of rgals or of the system, and 130 if it is
    interrupted. Wrong usage ends the process with 2, as argparse does.
    """
    parser = build_parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.exit(2, parser.format_help())
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        known = args.parser._option_string_actions
        near = {name for word in unknown for name in get_close_matches(word.split("=")[0], known)}
        said = f"unrecognized arguments: {' '.join(unknown)}"
        args.parser.error(f"{said}; did you mean {' or '.join(sorted(near))}?" if near else said)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process, such as a daemon
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # UTF-8, as in files, except at a terminal: code pages of Windows lack the characters of many ids.
        # File names may hold bytes that no encoding has.
        sys.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
            args.run(args)
        sys.stdout.flush()
        return OK
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe, as in `rgals demo | head`. The flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (RgalsError, OSError) as error:
        if args.debug:
            traceback.print_exc()
        text = str(error)
        if isinstance(error, OSError) and error.strerror and not isinstance(error, RgalsError):
            text = (
                f"{error.filename or 'an empty name'}: {error.strerror}"
                if error.filename is not None
                else error.strerror
            )
        _say(f"error: {text}")
        return FAILED


def _say(text: str) -> None:
    print("rgals:", " ".join(text.split()), file=sys.stderr)
