"""Help pages: options in sections, and examples for every verb."""

from __future__ import annotations

from typing import Any

import click

GRAPH, PLANNER, OUTPUT = "Graph options", "Planner options", "Output options"
_OWN = "Options"
_SECTIONS = (_OWN, GRAPH, PLANNER, OUTPUT)


class SectionedOption(click.Option):
    """An option with a section of the help page."""

    def __init__(self, *args: Any, section: str = _OWN, **kwargs: Any) -> None:
        """Take click's arguments for an option, and one of the sections above."""
        super().__init__(*args, **kwargs)
        self.section = section


class Verb(click.Command):
    """A verb whose help page lists its own options first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of options."""
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in _SECTIONS}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if row is not None:
                rows[getattr(parameter, "section", _OWN)].append(row)
        for section, records in rows.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Refer to the list of exit codes."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("Exit codes: remat --help. A shell's completion: remat completion --help.")
