"""`remat generate`: synthetic graphs of any size."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from remat_cli.cli.help import Verb
from remat_cli.cli.options import graph_option, said_on_command_line
from remat_cli.cli.output import STDOUT, Output, force_option
from remat_cli.config import Document, GraphOptions, checked, parse_option, unknown_name
from remat_cli.core.graph import Kind
from remat_cli.errors import UsageError
from remat_cli.formats.native import graph_bytes
from remat_cli.generate import GENERATORS
from remat_cli.synthesis import synthesize


@click.command("generate", cls=Verb)
@click.argument("family", required=False)
@click.option("--list", "lists", is_flag=True, help="List the families, their options, defaults and sources.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print a machine-readable summary to stdout.")
@click.option("--option", "options", multiple=True, metavar="KEY=VALUE", help="Option of the family. Repeatable.")
@click.option("--seed", type=int, help="Seed of a family that draws.")
@click.option("--ops", type=click.IntRange(min=1), help="Make a graph of about this many ops.")
@click.option(
    "--kind",
    type=click.Choice([str(kind) for kind in Kind]),
    help="Of graph. [default: inference for layered, else training]",
)
@graph_option("optimizer")
@graph_option("ranks")
@graph_option("cost_model")
@graph_option("device")
@graph_option("measurements")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=STDOUT,
    help="Write the graph here. [default: - (stdout)]",
)
@force_option
def command(
    family: str | None,
    lists: bool,
    as_json: bool,
    options: tuple[str, ...],
    seed: int | None,
    ops: int | None,
    kind: str | None,
    output: Path,
    **costs: Any,
) -> None:
    """Write a synthetic graph of FAMILY in the native JSON format: for trials of planners at any size.

    FAMILY is layered, transformer, llama, unet or chain. The same options and seed give the same bytes. Training graphs
    and times of ops are derived as for a file; a graph of kind forward keeps what is needed to derive them later.

    \b
    Examples:
      remat generate --list
      remat generate transformer --option layers=24 --option batch=4 --device a100 -o graph.json
      remat generate layered --option nodes=1000 --seed 7 -o graph.json
      remat generate llama --ranks 8 --device h100 --optimizer adam -o graph.json
      remat generate unet --ops 2000 --kind forward -o graph.json
    """
    if lists:
        _list_families(as_json)
        return
    if family is None:
        raise UsageError("generate needs a family of graphs", hint=f"name one of {', '.join(GENERATORS)}; see --list")
    said = dict(parse_option(text) for text in options)
    if seed is not None:
        said["seed"] = seed
    if family not in GENERATORS:
        raise unknown_name("FAMILY", family, GENERATORS)
    generator = checked(GENERATORS[family], Document(said, "--option"))
    if ops is not None and generator.grows_by in said:
        raise UsageError(f"--ops chooses {generator.grows_by}", hint=f"leave out --option {generator.grows_by}=...")
    graph = GraphOptions.of(said_on_command_line(costs))
    streams = Output(writes={"-o": output}, reads=graph.files)
    prepared = synthesize(generator, graph, kind=None if kind is None else Kind(kind), ops=ops)
    streams.write(output, graph_bytes(prepared.graph))
    streams.notes(prepared.notes)


def _list_families(as_json: bool) -> None:
    from remat_cli.reports.terminal.plan import cards_report
    from remat_cli.reports.terminal.planner_cards import planner_cards

    cards = planner_cards(GENERATORS)
    Output(as_json=as_json).report(lambda: cards_report(cards), lambda: {"families": [asdict(card) for card in cards]})
