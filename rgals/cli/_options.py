"""How commands declare their arguments: their own, and parameters of the functions that they call."""

import argparse
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

Argument = tuple[list[str], dict[str, Any]]  # positional and keyword arguments of `add_argument`
_FLAGS = {"n_jobs": "jobs", "random_state": "seed"}
_FLAGS |= {name: f"{name}-column" for name in ("user", "item", "value", "timestamp")}


class Heading(NamedTuple):
    """Start of a titled group of arguments; if ``exclusive``, only one of them may be given."""

    title: str
    text: str | None = None
    exclusive: bool = False


class Command(NamedTuple):
    """A command; the docstring of ``run`` is its help."""

    name: str
    arguments: tuple[Argument | Heading, ...]
    run: Callable[[argparse.Namespace], None]


def command(name: str, *arguments: Argument | Heading) -> Callable[..., Command]:
    """Decorate a function to become the command of this name."""
    return partial(Command, name, arguments)


def declare(parser: Any, arguments: Sequence[Argument | Heading]) -> None:
    """Add arguments to a parser."""
    group = parser
    for each in arguments:
        if isinstance(each, Heading):
            group = parser.add_argument_group(each.title, each.text)
            group = group.add_mutually_exclusive_group() if each.exclusive else group
        else:
            group.add_argument(*each[0], **each[1])


def arg(usage: str, text: str, **how: Any) -> Argument:
    """An argument by its usage, ``-o --output FILE``, ``--quiet`` or ``MODEL``, and its help."""
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    if "choices" not in how and len(names) == len(words):
        how["action"] = "store_true"
    elif "choices" not in how:
        how.setdefault("metavar", words[-1])
    return names or [usage.lower()], {"help": text, **how}


def param(function: Callable[..., Any], usage: str, text: str, kind: Any = None) -> Argument:
    """An option for a parameter of a function, with its default: ``n_iter N``, the help and the type."""
    # Without a placeholder (N) it is a flag or, where `kind` lists choices, one of these. The type is `kind`
    # or that of the default.
    name, _, metavar = usage.partition(" ")
    default = inspect.signature(function).parameters[name].default
    how: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
    if metavar:
        how = {"type": kind or (str if default is None else type(default)), "metavar": metavar}
    elif kind is not None:
        how = {"choices": kind}
    if default is not None:
        text += f" (default: {default:g})" if isinstance(default, float) else f" (default: {default})"
    how |= {"dest": f"{function.__name__}.{name}", "default": argparse.SUPPRESS, "help": text}
    short = ["-" + name] if len(name) == 1 else []
    return [*short, "--" + _FLAGS.get(name, name.replace("_", "-"))], how


def parameters(args: argparse.Namespace, function: Callable[..., Any]) -> dict[str, Any]:
    """The given options of a function (`param`), by the names of its parameters."""
    prefix = f"{function.__name__}."
    return {name.removeprefix(prefix): v for name, v in vars(args).items() if name.startswith(prefix)}
