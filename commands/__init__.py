"""The command line: one file a command. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import errno
import sys
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated

import typer

from cbtrace.commands.build import build
from cbtrace.commands.check import check
from cbtrace.commands.compress import compress, decompress
from cbtrace.commands.demo import demo
from cbtrace.commands.diff import diff
from cbtrace.commands.doctor import doctor
from cbtrace.commands.export import export
from cbtrace.commands.info import info
from cbtrace.commands.plain_text import plain
from cbtrace.commands.plan import plan
from cbtrace.commands.record import record
from cbtrace.commands.run import run as run_experiment
from cbtrace.commands.serve import serve
from cbtrace.commands.upgrade import upgrade
from cbtrace.commands.whatif import whatif
from cbtrace.commands.workload import workload

# Typer's name for "the command line is wrong" moved between its releases; its public subclass did not.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="cbtrace",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
# What follows the program's name belongs to the program, options included.
app.command(context_settings={"allow_interspersed_args": False})(record)
app.command()(info)
app.command()(check)
app.command()(export)
app.command()(upgrade)
app.command()(compress)
app.command()(decompress)
app.command()(diff)
app.command()(whatif)
app.command()(build)
app.command()(serve)
app.command()(demo)
app.command("run")(run_experiment)
app.add_typer(plan, name="plan")
app.add_typer(workload, name="workload")
app.command()(doctor)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"cbtrace {version('cbtrace')}")
        raise typer.Exit


@app.callback()
def _cbtrace(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Record what Transformers continuous batching does, step by step, and look at it in the browser.

    \b
    Examples:
      cbtrace demo
      cbtrace record -o run.cbt -- python script.py
      cbtrace build run.cbt -o site
    """


def main() -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    # A terminal that lacks a character shows another one in its place.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.exit(run())


def run() -> int:
    """Run the command line. What is expected to go wrong is said in one sentence, never in a traceback."""
    try:
        code = app(standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except _CommandLineError as error:
        lines = str(getattr(error, "format_message", error.__str__)())
        return _say(" ".join(lines.split()), "usage", 2)
    except Exception as error:
        from cbtrace.traces.errors import CbtraceError

        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return _say(f"{error.filename} is too long for a file's name: use a shorter one.", "name-too-long", 2)
        if not isinstance(error, CbtraceError):
            raise
        return _say(str(error), error.slug, error.exit_code)


def _say(text: str, slug: str, code: int) -> int:
    if sys.stderr is not None:
        print(f"cbtrace: {plain(text)} [{slug}]", file=sys.stderr)
    return code
