"""The report of `remat check` as JUnit XML, which CI servers show beside the tests: one test case a model."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from remat_cli.checks.check import Outcome, Verdict
from remat_cli.checks.project import Project
from remat_cli.reports.check.phrasing import conclusion, explanation, figures, headers
from remat_cli.reports.safe_text import clean

_SUITE = "remat check"
_TAGS = {Verdict.FAILS: "failure", Verdict.ERROR: "error"}


def check_junit(project: Project, outcomes: Sequence[Outcome]) -> bytes:
    """Return the report as JUnit XML.

    Names may hold what XML 1.0 has no way to write; `clean` leaves none of it.
    """
    counts = {
        "tests": str(len(outcomes)),
        "failures": str(sum(outcome.verdict is Verdict.FAILS for outcome in outcomes)),
        "errors": str(sum(outcome.verdict is Verdict.ERROR for outcome in outcomes)),
        "skipped": "0",
        "time": f"{sum(outcome.seconds for outcome in outcomes):.3f}",
    }
    root = Element("testsuites", {"name": _SUITE, **counts})
    suite = SubElement(root, "testsuite", {"name": clean(str(project.path)), **counts})
    headings = headers(outcomes)
    for outcome in outcomes:
        _add_case(suite, project, outcome, headings)
    SubElement(suite, "system-out").text = conclusion(outcomes)
    indent(root)
    xml: bytes = tostring(root, encoding="UTF-8", xml_declaration=True)
    return xml + b"\n"


def _add_case(suite: Element, project: Project, outcome: Outcome, headings: Sequence[str]) -> None:
    model = outcome.model
    case = SubElement(
        suite,
        "testcase",
        {
            "classname": _SUITE,
            "name": clean(model.name),
            "file": clean(project.path.as_posix()),
            "line": str(model.line),
            "time": f"{outcome.seconds:.3f}",
        },
    )
    if outcome.failures:
        # Readers take one element a case.
        reasons = [clean(failure.reason) for failure in outcome.failures]
        kinds = ", ".join(failure.limit for failure in outcome.failures)
        described = {"message": "; ".join(reasons), "type": kinds}
        SubElement(case, _TAGS[outcome.verdict], described).text = explanation(outcome)
    measured = [f"{label}: {value}" for label, value in zip(headings, figures(outcome, headings), strict=True) if value]
    if measured:
        SubElement(case, "system-out").text = "\n".join(measured)
