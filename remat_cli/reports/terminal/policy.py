"""The report of `remat plan --as policy`: what blocks save, what it costs, and what others would take."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.text import Text

from remat_cli.pytorch.checkpoints import ChosenPolicy, PolicyPlanning, saved_turns
from remat_cli.reports.safe_text import Report, Verbatim, clean
from remat_cli.reports.terminal.checkpoints import least_in_words, ranges, subject_facts, table_beside_free
from remat_cli.reports.terminal.layout import bullets, indented, section
from remat_cli.units import counted, first_of, format_bytes, format_share

_MOST_CALLS = 6


def policy_report(planning: PolicyPlanning) -> Report:
    """Return the report."""
    chosen = planning.chosen
    style = "bold green" if chosen is not None else "bold red" if planning.none_fits else "bold yellow"
    parts: list[RenderableType | Verbatim] = [subject_facts(planning.modules), Text(_verdict(planning), style)]
    if chosen is None and (remedies := _remedies(planning)):
        parts.append(section("What could be done", bullets(remedies)))
    parts.append(indented(_table(planning)))
    if chosen is not None and chosen.policy.blocks:
        parts.append(section("Blocks to wrap, and what they save", bullets(_blocks(chosen))))
        parts.append(Verbatim("In code", planning.code))
    if planning.modules.notes:
        parts.append(section("Notes", bullets([clean(note) for note in planning.modules.notes])))
    return Report(*parts)


def _verdict(planning: PolicyPlanning) -> str:
    modules, chosen = planning.modules, planning.chosen
    budget = format_bytes(modules.budget_bytes)
    if chosen is None:
        return f"No policy fits {budget}." if planning.none_fits else f"No policy was found that fits {budget}."
    if not chosen.policy.blocks:
        return f"The step fits {budget} without checkpoints."
    text = f"Selective checkpoints of {counted(len(chosen.policy.paths), 'block')} fit {budget}, at "
    text += f"{format_share(modules.overhead(chosen.trace.time))} more time"
    if chosen.proven:
        return f"{text}; no other policy takes less."
    return (
        f"{text}; no policy takes less than {format_share(modules.overhead(modules.plain.time + chosen.least_time))}."
    )


def _remedies(planning: PolicyPlanning) -> list[str]:
    modules, said = planning.modules, []
    if planning.least is not None:
        said.append(least_in_words(modules, planning.least, "a policy reaches"))
    if modules.wrapped is not None:
        share = format_share(modules.overhead(modules.wrapped.trace.time))
        said.append(f"checkpoints of whole modules fit, at {share} more time: --as checkpoints")
    if modules.free.trace is not None and modules.free.overhead is not None:
        share = format_share(modules.free.overhead)
        said.append(f"the free plan fits, at {share} more time: leave --as out, and run it with remat")
    return said


def _table(planning: PolicyPlanning) -> RenderableType:
    modules = planning.modules
    found = (
        ("this policy", planning.chosen),
        ("policy, least peak", planning.least),
        ("whole modules (--as checkpoints)", modules.wrapped),
        ("whole modules, least peak", modules.least),
    )
    rows = [(label, chosen.trace.peak_bytes, chosen.trace.time) for label, chosen in found if chosen]
    return table_beside_free(modules, rows)


def _blocks(chosen: ChosenPolicy) -> list[str]:
    said = []
    for kind, paths in chosen.policy.blocks.items():
        turns = saved_turns(chosen.policy.saved[kind])
        said.append(f"{', '.join(ranges(paths, [kind] * len(paths)))}: {_calls(turns)}")
    return said


def _calls(turns: Mapping[str, set[int]]) -> str:
    if not turns:
        return "saves nothing"
    said = [f"{function} {', '.join(map(str, sorted(turns[function])))}" for function in sorted(turns)]
    return clean(f"saves {first_of(said, _MOST_CALLS, '; ')}")
