"""The command line: one verb a file, loaded when it is called, so that help and predictions start at once."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from typing import Any

import click

from fiafuzz import __version__

from .streams import FULL, drop, unconcerned_stderr

EXIT_CLEAN, EXIT_FINDINGS, EXIT_USAGE, EXIT_INTERNAL = 0, 1, 2, 3
EXIT_UNAVAILABLE, EXIT_NOTHING, EXIT_INTERRUPTED = 4, 5, 130

VERBS: dict[str, tuple[str, str]] = {
    "fuzz": ("fuzz", "Generate calls, predict, run a backend, judge, shrink and keep what does not agree."),
    "replay": ("replay", "Run kept or single cases again: fixed, failing, flaky or new."),
    "corpus": ("corpus", "List, show, check, merge and thin out kept findings."),
    "generate": ("generate", "Print generated cases, one JSON object a line."),
    "predict": ("predict", "Say what the operator must answer to each case, and why."),
    "reference": ("reference", "Compute the expected outputs of a case, from its fills or from dumped inputs."),
    "judge": ("judge", "Give a verdict on outputs that somebody dumped."),
    "shrink": ("shrink", "Make a failing case as small and plain as possible."),
    "constraints": ("constraints", "List, show and check the rules."),
    "import": ("import_cases", "Turn case files of the operator's own suites into cases."),
    "export": ("export", "Hand over cases as programs, tests and case files that need no fiafuzz."),
    "report": ("report", "Write a run, or several, down: a page for people, files for CI systems and tables."),
    "coverage": ("coverage", "Count which scene factors, pairs and triples a set of cases reaches."),
    "history": ("history", "Compare nightly runs: new, fixed and flaky findings, coverage, rules that changed sides."),
    "bisect": ("bisect", "Find the first bad build of an ordered list."),
    "schema": ("schema", "Print a published JSON schema: events, case, entry, tables, config."),
    "config": ("show_config", "Show the value of every option and where it comes from."),
    "backends": ("backends", "List the backends and what each can run."),
    "selftest": ("selftest", "Hunt the planted faults and print which are found, how soon and how small they become."),
    "doctor": ("doctor", "Check this machine: versions, backends, what is missing and the next step."),
    "explain": ("explain", "Tell what a verdict code or a rule means and what to do."),
}


def complain(text: str, limit: int = 4000) -> None:
    """One line on stderr after the program's name. What is foreign in it can neither move a terminal nor begin a line."""
    from fiafuzz.campaign.results import clean

    click.echo(f"fiafuzz: {clean(text, limit)}".replace("\n", " "), err=True)


class UserError(click.ClickException):
    """Something that the user gave is wrong: one line on stderr, exit 2."""

    exit_code = EXIT_USAGE

    def show(self, file: Any = None) -> None:
        """Print the one line."""
        complain(self.format_message())


class Unavailable(UserError):
    """The backend cannot run here: one line on stderr, exit 4."""

    exit_code = EXIT_UNAVAILABLE


class Verbs(click.Group):
    """A group whose commands are imported when they are used."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb. When the reader of its output has gone (fiafuzz generate | head), nothing more is to be said; click would
        leave with the code of findings."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            drop(sys.stdout)
            return EXIT_CLEAN

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of the list above."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """The command of that name."""
        return verb_command(name) if name in VERBS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs with their one-line help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


def verb_command(name: str) -> click.Command:
    """The command of a verb, imported now."""
    module = import_module(f"fiafuzz.cli.{VERBS[name][0]}")
    command: click.Command = module.command
    return command


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "auto_envvar_prefix": "FIAFUZZ"},
)
@click.version_option(__version__, prog_name="fiafuzz")
@click.option(
    "--config",
    metavar="FILE",
    help="Configuration file. [default: the nearest fiafuzz.toml, or pyproject.toml with [tool.fiafuzz], upwards]",
)
@click.option("--no-config", is_flag=True, help="Read no configuration file.")
@click.option("--show-config", is_flag=True, help="Show what the rest of the command line would run with, and where each value comes from.")
@click.pass_context
def cli(ctx: click.Context, config: str | None, no_config: bool, show_config: bool) -> None:
    """Fuzz and check Ascend CANN's FusedInferAttentionScore.

    Exit codes: 0 clean, 1 findings, 2 usage, unreadable input or output that cannot be written, 3 internal error, 4 the
    backend cannot run here, 5 nothing selected, 130 interrupted.
    """
    from .config import apply

    apply(ctx, ctx.invoked_subcommand)


def shown_instead(arguments: list[str]) -> list[str]:
    """The command line with the verb config before its verb when it says --show-config, which may stand anywhere before a "--"."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if "--show-config" not in arguments[:end]:
        return arguments
    rest = [a for i, a in enumerate(arguments) if i >= end or a != "--show-config"]
    at = next((i for i, a in enumerate(rest) if a in VERBS and (i == 0 or rest[i - 1] != "--config")), len(rest))
    return [*rest[:at], "config", *rest[at:]]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with the documented exit code."""
    with unconcerned_stderr():
        code = run(arguments)
    sys.exit(code if isinstance(code, int) else EXIT_CLEAN)


def run(arguments: list[str] | None = None) -> Any:
    """Run the command line; returns its exit code."""
    code: Any
    try:
        given = shown_instead(sys.argv[1:] if arguments is None else arguments)
        code = cli.main(args=given, prog_name="fiafuzz", standalone_mode=False)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.UsageError as error:
        from .config import blame

        hint = blame(error) or (f" Try '{error.ctx.command_path} --help'." if error.ctx else "")
        complain(f"{' '.join(error.format_message().split())}{hint}")
        code = EXIT_USAGE
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("fiafuzz: interrupted", err=True)
        code = EXIT_INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            drop(sys.stdout)
            complain(f"cannot write{f' {error.filename}' if error.filename else ''}: {error.strerror}")
            return EXIT_USAGE
        if os.environ.get("FIAFUZZ_DEBUG"):
            traceback.print_exc()
        text = " ".join(str(error).split())[:300]
        complain(f"internal error: {type(error).__name__}: {text} (FIAFUZZ_DEBUG=1 prints where)")
        code = EXIT_INTERNAL
    return code


if __name__ == "__main__":
    main()
