"""Help pages: options in sections, and examples for every verb."""

from __future__ import annotations

from typing import Any

import click

GRAPH, PLANNER, OUTPUT = "Graph options", "Planner options", "Output options"
_OWN = "Options"
_SECTIONS = (_OWN, GRAPH, PLANNER, OUTPUT)


class SectionedOption(click.Option):
    """An option that stands in a section of the help page with others of its kind."""

    def __init__(self, *args: Any, section: str = _OWN, **kwargs: Any) -> None:
        """Take what click's option takes, and one of the sections above."""
        super().__init__(*args, **kwargs)
        self.section = section


class Verb(click.Command):
    """A verb whose help page has its own options first, and then those that it shares with others."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
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
        """Say where exit codes are listed."""
        super().format_epilog(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("Exit codes: remat --help. A shell's completion: remat completion --help.")
