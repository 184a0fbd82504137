"""The report of `remat check` in each of its forms: what it says, and that nothing in a name breaks the form."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from remat_cli.checks.baseline import Figures
from remat_cli.checks.check import UNDERSTATED, CheckOutcome, Failure
from remat_cli.checks.project import ModelCheck, Project
from remat_cli.config import GraphOptions, PlannerChoice, Request
from remat_cli.errors import ExitCode
from remat_cli.reports.check.forms import (
    check_github,
    check_json,
    check_junit,
    check_markdown,
    check_report,
    check_text,
)
from remat_cli.reports.check.phrasing import conclusion
from remat_cli.units import BudgetSpec
from tests.unit.reports.rendering import rendered

# A terminal command, a row's end, ends of commands and elements, half a surrogate pair, a line end that Python knows.
NASTY = "\x1b[31m\x00|`*a*`<b>&%0A::error::]]>\ud800\u2028\ufffe\r\n,:=@all"
FIGURES = Figures(3_266_197_520, 925_728_784, 1_959_718_512, 1_953_335_824, 0.0555)


def model(name: str = "unet", line: int = 3) -> ModelCheck:
    return ModelCheck(
        name=name,
        path=Path("graphs/unet.onnx"),
        line=line,
        graph=GraphOptions(),
        request=Request(BudgetSpec(share=Fraction(3, 5)), PlannerChoice("keep_all"), Fraction(1, 10)),
    )


def project(*outcomes: CheckOutcome, path: str = "graphs/remat.yaml") -> Project:
    return Project(Path(path), Path("graphs/remat.baseline.json"), tuple(outcome.model for outcome in outcomes))


HOLDS = CheckOutcome(model(), FIGURES, seconds=0.25)
FAILS = CheckOutcome(
    model("gpt", 7),
    replace(FIGURES, overhead=0.25),
    failures=(
        Failure(
            "max_overhead", "the plan takes 25 % more time", ("raise budget to 2GB", "allow it: max_overhead: 25%")
        ),
        Failure("max_regression", "the plain peak grew by 5 %", ("write the baseline anew",)),
    ),
    exit_code=ExitCode.NO_FIT,
    seconds=1.5,
)
BROKEN = CheckOutcome(
    model("lost", 9), failures=(Failure("error", "x.onnx: no such file", ("check the path",)),), exit_code=6
)
WARNS = CheckOutcome(
    model("half", 8),
    FIGURES,
    failures=(Failure(UNDERSTATED, "the run takes more memory than predicted", ("plan what 'remat fuse' writes",)),),
    exit_code=ExitCode.NO_FIT,
)
NAMED = CheckOutcome(model(NASTY), FIGURES, failures=(Failure("budget", NASTY, (NASTY,)),), exit_code=ExitCode.NO_FIT)
ALL = (HOLDS, FAILS, BROKEN)


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ((HOLDS,), "The model holds."),
        ((HOLDS, HOLDS), "All 2 models hold."),
        ((FAILS,), "1 of 1 model fails."),
        ((HOLDS, FAILS, FAILS), "2 of 3 models fail."),
        ((HOLDS, BROKEN), "1 of 2 models could not be checked."),
        (ALL, "1 of 3 models fails, 1 could not be checked."),
        ((WARNS,), "1 of 1 model ends with a warning."),
        ((HOLDS, WARNS, WARNS), "2 of 3 models end with a warning."),
        ((WARNS, *ALL), "1 of 4 models fails, 1 ends with a warning, 1 could not be checked."),
    ],
)
def test_the_conclusion_counts(outcomes: Sequence[CheckOutcome], said: str) -> None:
    assert conclusion(outcomes) == said


class TestTable:
    def test_it_has_a_line_a_model_and_below_it_why_and_what_helps(self) -> None:
        assert rendered(check_report(ALL)) == (
            "check  model  plain peak     limit      plan  overhead\n"
            "holds  unet     3.266 GB  1.960 GB  1.953 GB    5.55 %\n"
            "fails  gpt      3.266 GB  1.960 GB  1.953 GB   25.00 %\n"
            "       The plan takes 25 % more time.\n"
            "       · Raise budget to 2GB.\n"
            "       · Allow it: max_overhead: 25%.\n"
            "       The plain peak grew by 5 %.\n"
            "       · Write the baseline anew.\n"
            "error  lost\n"
            "       x.onnx: no such file.\n"
            "       · Check the path.\n"
            "\n"
            "1 of 3 models fails, 1 could not be checked.\n"
        )

    def test_a_baseline_adds_what_changed(self) -> None:
        grown = replace(FAILS, before=replace(FIGURES, plain_peak_bytes=3_000_000_000))
        shrunk = replace(HOLDS, before=replace(FIGURES, plain_peak_bytes=4_000_000_000))
        same = replace(HOLDS, before=FIGURES)
        text = rendered(check_report((grown, shrunk, same, HOLDS)))
        changes = re.findall(r"3\.266 GB +(\S+(?: %)?) +1\.960", text)
        assert changes == ["+8.87 %", "-18.35 %", "none", "new"]

    def test_a_long_name_takes_no_more_room_than_there_is(self) -> None:
        long = replace(HOLDS, model=model("a" * 200))
        assert max(map(len, rendered(check_report((long, FAILS)), width=80).splitlines())) <= 80

    def test_a_narrow_terminal_shows_each_figure(self) -> None:
        text = rendered(check_report((replace(HOLDS, before=FIGURES), FAILS)), width=40)
        assert max(map(len, text.splitlines())) <= 40
        wide = rendered(check_report((replace(HOLDS, before=FIGURES), FAILS)), width=200).splitlines()[1]
        figures = wide.split("  ")[2:]
        assert all(figure.strip() in text for figure in figures)
        assert "plain peak  3.266 GB" in text

    def test_nothing_in_a_name_reaches_the_terminal(self) -> None:
        text = rendered(check_report((NAMED,)))
        assert not set(text) & set("\x1b\x00\r\ud800\u2028")

    def test_in_a_file_it_is_plain_text(self) -> None:
        assert check_text(project(*ALL), ALL).decode().startswith("check  model  plain peak")


class TestJUnit:
    def test_ci_servers_find_counts_cases_and_reasons(self) -> None:
        root = fromstring(check_junit(project(*ALL), ALL))
        (suite,) = root
        for element in (root, suite):
            counts = {key: element.get(key) for key in ("tests", "failures", "errors", "skipped")}
            assert counts == {"tests": "3", "failures": "1", "errors": "1", "skipped": "0"}
        assert root.tag == "testsuites"
        cases = suite.findall("testcase")
        assert [(case.get("name"), case.get("file"), case.get("line")) for case in cases] == [
            ("unet", "graphs/remat.yaml", "3"),
            ("gpt", "graphs/remat.yaml", "7"),
            ("lost", "graphs/remat.yaml", "9"),
        ]
        assert [case.get("time") for case in cases] == ["0.250", "1.500", "0.000"]
        assert [[child.tag for child in case] for case in cases] == [
            ["system-out"],
            ["failure", "system-out"],
            ["error"],
        ]
        failure = cases[1].find("failure")
        assert failure is not None
        assert failure.get("message") == "the plan takes 25 % more time; the plain peak grew by 5 %"
        assert failure.get("type") == "max_overhead, max_regression"
        assert failure.text is not None
        assert "- Raise budget to 2GB." in failure.text

    def test_names_that_xml_cannot_hold_are_replaced(self) -> None:
        root = fromstring(check_junit(project(NAMED, path=f"{NASTY}.yaml"), (NAMED,)))
        (case,) = root.iter("testcase")
        name = case.get("name")
        assert name is not None
        assert "|`*a*`<b>&%0A::error::]]>" in name
        assert not set(name) & set("\x1b\x00\ud800\ufffe\r\n")


class TestGitHub:
    def commands(self, *outcomes: CheckOutcome, path: str = "graphs/remat.yaml") -> list[str]:
        return check_github(project(*outcomes, path=path), outcomes).decode().splitlines()

    def test_each_failure_is_an_annotation_of_its_line(self) -> None:
        lines = self.commands(*ALL)
        assert lines == [
            "::error file=graphs/remat.yaml,line=7,title=remat check%3A gpt fails::"
            "The plan takes 25 %25 more time.%0A- Raise budget to 2GB.%0A- Allow it: max_overhead: 25%25.%0A"
            "The plain peak grew by 5 %25.%0A- Write the baseline anew.",
            "::error file=graphs/remat.yaml,line=9,title=remat check%3A lost could not be checked::"
            "x.onnx: no such file.%0A- Check the path.",
            "1 of 3 models fails, 1 could not be checked.",
        ]

    def test_that_all_hold_is_a_notice(self) -> None:
        assert self.commands(HOLDS, HOLDS) == ["::notice title=remat check::All 2 models hold."]

    def test_a_name_can_end_no_property_and_begin_no_command(self) -> None:
        lines = self.commands(NAMED, path="a,b:c%.yaml")
        assert len(lines) == 2
        match = re.fullmatch(r"::error file=([^,:]*),line=3,title=([^,:]*)::(.*)", lines[0])
        assert match is not None
        file, title, message = match.groups()
        assert file == "a%2Cb%3Ac%25.yaml"
        assert "%250A%3A%3Aerror" in title
        assert re.search(r"%(?!25|0A|0D)", message) is None

    def test_the_file_is_named_from_the_top_of_the_repository(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
        assert "file=remat.yaml," in self.commands(FAILS, path="remat.yaml")[0]
        monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
        assert "file=sub/remat.yaml," in self.commands(FAILS, path="remat.yaml")[0]


def test_a_warning_is_one_in_every_form() -> None:
    both = (project(WARNS, FAILS), (WARNS, FAILS))
    assert (
        "warns  half     3.266 GB  1.960 GB  1.953 GB    5.55 %\n"
        "       The run takes more memory than predicted.\n"
        "       · Plan what 'remat fuse' writes.\n"
    ) in rendered(check_report(both[1]))
    github = check_github(*both).decode().splitlines()
    assert github[0].startswith("::warning file=graphs/remat.yaml,line=8,title=remat check%3A half ends with a warning")
    assert github[0].endswith("- Plan what 'remat fuse' writes.")
    markdown = check_markdown(*both).decode()
    assert "| ⚠️ warns | half |" in markdown
    assert "\n- Plan what 'remat fuse' writes.\n" in markdown
    suite = fromstring(check_junit(*both))[0]
    assert (suite.get("failures"), suite.get("errors")) == ("2", "0")
    assert "remat fuse" in str(suite.findtext("testcase/failure"))
    summary = json.loads(check_json(project(WARNS), (WARNS,)))
    assert (summary["holds"], summary["models"][0]["verdict"]) == (False, "warns")
    assert "remat fuse" in summary["models"][0]["failures"][0]["remedies"][0]


def test_every_form_says_once_for_which_session_the_figures_hold() -> None:
    said = "Peaks hold with some options."
    both = tuple(replace(outcome, session=said) for outcome in (HOLDS, WARNS))
    for form in (check_github, check_markdown, check_junit, check_text):
        assert form(project(*both), both).decode().count(said) == 1
    assert [one["session"] for one in json.loads(check_json(project(*both), both))["models"]] == [said, said]


class TestMarkdown:
    def test_a_pull_request_shows_a_table_and_the_failures(self) -> None:
        text = check_markdown(project(*ALL), ALL).decode()
        assert text.startswith(
            "### remat check: 1 of 3 models fails, 1 could not be checked.\n\n"
            "| | model | plain peak | limit | plan | overhead |\n"
            "|---|---|---:|---:|---:|---:|\n"
            "| ✅ holds | unet | 3.266 GB | 1.960 GB | 1.953 GB | 5.55 % |\n"
            "| ❌ fails | gpt | 3.266 GB | 1.960 GB | 1.953 GB | 25.00 % |\n"
            "| ⚠️ error | lost |  |  |  |  |\n"
        )
        assert "\n**gpt**: the plan takes 25 % more time\n\n- Raise budget to 2GB.\n" in text
        assert "\n**lost**: x.onnx: no such file\n\n- Check the path.\n" in text

    def test_a_name_can_break_no_table_and_mention_nobody(self) -> None:
        text = check_markdown(project(NAMED), (NAMED,)).decode()
        (row,) = [line for line in text.splitlines() if line.startswith("| ❌")]
        assert row.count("|") == 7
        assert not set(text) & set("`<@\x1b\x00\u2028")
        assert len(text.splitlines()) == len(check_markdown(project(BROKEN), (BROKEN,)).decode().splitlines())


class TestJSON:
    def test_it_holds_the_limits_the_figures_and_the_failures(self) -> None:
        summary = json.loads(check_json(project(*ALL), ALL))
        assert summary["holds"] is False
        holds, fails, broken = summary["models"]
        assert (holds["verdict"], holds["failures"]) == ("holds", [])
        assert holds["limits"] == {
            "budget": "60%",
            "max_overhead": 0.1,
            "max_peak_bytes": None,
            "max_regression": None,
            "offload": False,
            "arena": False,
            "alignment": 64,
            "banks": {},
            "allocator": None,
            "split": False,
        }
        assert holds["figures"]["plan_peak_bytes"] == 1_953_335_824
        assert fails["failures"][0]["remedies"] == ["raise budget to 2GB", "allow it: max_overhead: 25%"]
        assert (broken["exit_code"], broken["figures"]) == (6, None)

    def test_any_name_can_be_read_back(self) -> None:
        assert json.loads(check_json(project(NAMED), (NAMED,)))["models"][0]["name"] == NASTY

    def test_the_time_that_it_took_is_not_in_it(self) -> None:
        slower = replace(HOLDS, seconds=9.0)
        assert check_json(project(HOLDS), (HOLDS,)) == check_json(project(slower), (slower,))
