"""From plain functions to a command line.

A command is one function whose parameters carry an `Arg`; what stands before the `*` is an argument, what stands
behind it an option. Typer builds the command line where it is installed, argparse elsewhere (torch and numpy are
enough to train): the same names, options, defaults and exit codes.
"""

from __future__ import annotations

import argparse
import inspect
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pmsfl import lifeline
from pmsfl._version import __version__
from pmsfl.errors import PmsflError
from pmsfl.recipe_files import nearest
from pmsfl.report.console import UsageError, complain, flush, say

Command = Callable[..., None]

PROGRAM = "pmsfl"
INTERRUPTED = 130  # what a shell reports after Ctrl-C


@dataclass(frozen=True)
class Arg:
    """What the command line says about a parameter. name: the option's, where the parameter's own will not do."""

    help: str
    short: str = ""
    name: str = ""
    metavar: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """Commands under one name: `pmsfl bench step`."""

    about: str
    commands: Mapping[str, Command]


Commands = Mapping[str, Command | Group]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a command: `kind` is str, int, bool or Path; `many` where it may be given repeatedly."""

    name: str
    arg: Arg
    annotation: Any
    kind: type
    many: bool
    positional: bool
    default: Any  # inspect.Parameter.empty where it must be given

    @property
    def required(self) -> bool:
        """Must it be given?"""
        return self.default is inspect.Parameter.empty

    @property
    def spellings(self) -> list[str]:
        """How an option is written, the short form last."""
        long = "--" + (self.arg.name or self.name.replace("_", "-"))
        return [long, self.arg.short] if self.arg.short else [long]

    @property
    def label(self) -> str:
        """What stands for its value in a usage line."""
        return self.arg.metavar or self.name.upper()


def parameters(command: Command) -> list[Parameter]:
    """The parameters of a command, in order."""
    hints = get_type_hints(command, include_extras=True)
    found = []
    for p in inspect.signature(command).parameters.values():
        annotation, arg = get_args(hints[p.name])
        kind, many = _kind(annotation)
        positional = p.kind is not inspect.Parameter.KEYWORD_ONLY
        found.append(Parameter(p.name, arg, annotation, kind, many, positional, p.default))
    return found


def _kind(annotation: Any) -> tuple[type, bool]:
    """The type of one value, and whether there may be several: list[str] | None is (str, True)."""
    if get_origin(annotation) in (Union, types.UnionType):
        [annotation] = [a for a in get_args(annotation) if a is not type(None)]
    if get_origin(annotation) is list:
        return get_args(annotation)[0], True
    return annotation, False


def main(commands: Commands, argv: Sequence[str], about: str) -> int:
    """Run the command that `argv` names and return the exit code."""
    arguments = list(argv) or ["--help"]
    if len(arguments) == 1 and isinstance(commands.get(arguments[0]), Group):
        arguments.append("--help")
    try:
        import typer  # noqa: F401
    except ImportError:
        code = _run_argparse(commands, arguments, about)
    else:
        code = _run_typer(commands, arguments, about)
    flush()
    return code


def perform(command: Command, values: Mapping[str, Any]) -> int:
    """Call a command; whatever a user can cause becomes one line and an exit code."""
    from pmsfl.run import Interrupted

    try:
        _check_choices(command, values)
        with _terminated_like_interrupted():
            command(**values)
    except UsageError as e:
        return complain(str(e), 2)
    except Interrupted as e:
        return complain(str(e), INTERRUPTED)
    except PmsflError as e:
        return complain(str(e), 1)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except OSError as e:
        if e.filename is None:
            raise
        return complain(f"{e.filename}: {e.strerror or e}", 1)
    return 0


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does: what has begun is saved, other processes are told.

    A scheduler sends nothing else, and a program that a script put into the background does not hear Ctrl-C at all.
    Processes of a launcher stop as it tells them: saving needs all of them.
    """
    from pmsfl.engine.processes import launched

    if launched() > 1 or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    lifeline.heed()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_choices(command: Command, values: Mapping[str, Any]) -> None:
    for p in parameters(command):
        value = values.get(p.name)
        if p.arg.choices and value is not None and value not in p.arg.choices:
            hint = f"{nearest(value, p.arg.choices)} (allowed: {', '.join(p.arg.choices)})"
            raise UsageError(f"{p.label if p.positional else p.spellings[0]} {value!r}: {hint}")


# --- typer


def _run_typer(commands: Commands, argv: list[str], about: str) -> int:
    import typer

    # No markup: help texts say [k=v] and mean it. No completion: it would install itself into shells.
    style: dict[str, Any] = {
        "add_completion": False,
        "rich_markup_mode": None,
        "pretty_exceptions_enable": False,
        "context_settings": {"help_option_names": ["-h", "--help"]},
    }

    def add(app: Any, commands: Commands) -> Any:
        for name, command in commands.items():
            if isinstance(command, Group):
                app.add_typer(add(typer.Typer(help=command.about, **style), command.commands), name=name)
            else:
                app.command(name, help=inspect.getdoc(command), short_help=_first_line(command))(_for_typer(command))
        return app

    app = typer.Typer(help=about, **style)

    def show_version(wanted: bool) -> None:
        if wanted:
            say(f"{PROGRAM} {__version__}")
            raise typer.Exit

    def root(version: bool = False) -> None:
        pass

    flag = typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    root.__annotations__ = {"version": Annotated[bool, flag]}
    app.callback()(root)
    try:
        typer.main.get_command(add(app, commands)).main(args=argv, prog_name=PROGRAM)
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 0
    return 0


def _for_typer(command: Command) -> Command:
    """The command with its parameters described to typer; typer reads nothing but the signature."""

    def call(**values: Any) -> None:
        if code := perform(command, values):
            raise SystemExit(code)

    wanted = [_typer_parameter(p) for p in parameters(command)]
    call.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in wanted}
    return call


def _typer_parameter(p: Parameter) -> inspect.Parameter:
    import typer

    show = p.default not in (None, False, "")
    if p.positional:
        info = typer.Argument(help=p.arg.help, metavar=p.label, show_default=show)
    else:
        # A flag has no value to name, and no --no- form.
        label = None if p.kind is bool else p.label
        info = typer.Option(*p.spellings, help=p.arg.help, metavar=label, show_default=show)
    described: Any = Annotated  # as a value: a type checker cannot follow what is built here
    annotation = described[p.annotation, info]
    return inspect.Parameter(p.name, inspect.Parameter.KEYWORD_ONLY, default=p.default, annotation=annotation)


# --- argparse


class _Parser(argparse.ArgumentParser):
    """argparse in the words of the rest."""

    def error(self, message: str) -> Any:
        """One line on what is wrong, one on where to look."""
        say(self.format_usage().rstrip(), sys.stderr)
        say(f"try '{self.prog} --help' for help", sys.stderr)
        raise SystemExit(complain(message, 2))


def _run_argparse(commands: Commands, argv: list[str], about: str, above: str = "") -> int:
    """above: the group that the commands belong to, with a space behind it."""
    name, rest = argv[0], argv[1:]
    if name in ("-h", "--help"):
        return _overview(commands, about, above)
    if name == "--version" and not above:
        say(f"{PROGRAM} {__version__}")
        return 0
    if name not in commands:
        what = "option" if name.startswith("-") else "command"
        known = ["--help", "--version"] if name.startswith("-") else list(commands)
        return complain(f"no such {what} {name!r}: {nearest(name, known)}", 2)
    command = commands[name]
    if isinstance(command, Group):
        return _run_argparse(command.commands, rest, command.about, f"{name} ")
    parser = _parser(above + name, command)
    try:
        found, unknown = parser.parse_known_intermixed_args(rest)
        if unknown:
            known = [s for p in parameters(command) if not p.positional for s in p.spellings]
            hint = f": {nearest(unknown[0], known)}" if unknown[0].startswith("-") and known else ""
            parser.error(f"unexpected {unknown[0]!r}{hint}")
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 0
    return perform(command, vars(found))


def _overview(commands: Commands, about: str, above: str) -> int:
    width = max(map(len, commands))
    version = "" if above else " [--version]"
    lines = [f"usage: {PROGRAM} {above}[--help]{version} COMMAND ...", "", about, "", "commands:"]
    lines += [f"  {name:<{width}}  {_first_line(command)}" for name, command in commands.items()]
    say("\n".join(lines))
    return 0


def _parser(name: str, command: Command) -> _Parser:
    parser = _Parser(prog=f"{PROGRAM} {name}", description=inspect.getdoc(command), allow_abbrev=False)
    for p in parameters(command):
        default = None if p.required else p.default
        shown = "" if default in (None, False, "") else f" [default: {default}]"
        options: dict[str, Any] = {"help": (p.arg.help + shown).replace("%", "%%"), "default": default}
        if p.kind is not bool:
            options |= {"type": p.kind, "metavar": p.label}
        if p.positional:
            many = {(True, True): "+", (True, False): "*", (False, False): "?"}
            if nargs := many.get((p.many, p.required)):
                options["nargs"] = nargs
            parser.add_argument(p.name, **options)
        else:
            options["action"] = "store_true" if p.kind is bool else "append" if p.many else "store"
            parser.add_argument(*reversed(p.spellings), dest=p.name, required=p.required, **options)
    return parser


def _first_line(command: Command | Group) -> str:
    return (command.about if isinstance(command, Group) else inspect.getdoc(command) or "").splitlines()[0]
