"""Files of a user's, damaged: as trees of values, as text, and as bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.targets import targets

TARGETS = targets()
JSON = ["native", "node_link", "schedule"]
YAML = ["config", "project", "manifest"]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 10**30, -1, 0])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["\x1b[2J", "a\nb", "[bold]", "</script>", "x" * 10_000, "\ud800"])
)
pieces = st.binary(max_size=6) | st.sampled_from([b"{", b"]", b'"', b"\n", b"\x00", b"&a *a"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value stands in a document: keys and indices from the top."""
    found = [path] if path else []
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, below in entries:
        found += places(below, (*path, key))
    return found


def damaged(data: st.DataObject, tree: Any) -> Any:
    """Replace, remove or repeat one to three values."""
    for _ in range(data.draw(st.integers(1, 3))):
        if not (found := places(tree)):
            return data.draw(values)
        *above, last = data.draw(st.sampled_from(found))
        holder = tree
        for key in above:
            holder = holder[key]
        match data.draw(st.sampled_from(["replace", "remove", "repeat"])):
            case "replace":
                holder[last] = data.draw(values)
            case "remove":
                del holder[last]
            case "repeat":
                copy = json.loads(json.dumps(holder[last]))
                if isinstance(holder, list):
                    holder.append(copy)
                else:
                    holder[f"{last}2"] = copy
    return tree


@pytest.mark.parametrize("name", TARGETS)
def test_undamaged_files_are_read(name: str) -> None:
    target = TARGETS[name]
    assert [target.outcome(seed) for seed in target.seeds] == ["read"] * len(target.seeds)


@pytest.mark.parametrize("name", JSON)
@given(data=st.data())
def test_documents_with_other_values(name: str, data: st.DataObject) -> None:
    tree = damaged(data, json.loads(TARGETS[name].seeds[0]))
    assert TARGETS[name].outcome(json.dumps(tree).encode()) in ("read", "refused")


@pytest.mark.parametrize("name", YAML)
@given(data=st.data())
def test_settings_with_other_values(name: str, data: st.DataObject) -> None:
    tree = damaged(data, yaml.safe_load(TARGETS[name].seeds[0]))
    text = yaml.safe_dump(tree, allow_unicode=True)
    assert TARGETS[name].outcome(text.encode(errors="surrogatepass")) in ("read", "refused")


@pytest.mark.parametrize("name", [*JSON, *YAML])
@given(data=st.data())
def test_damaged_text(name: str, data: st.DataObject) -> None:
    content = bytearray(TARGETS[name].seeds[0])
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + 20)))
        content[start:end] = data.draw(
            st.binary(max_size=6) | st.sampled_from([b"{", b"]", b'"', b"\n", b"\x00", b"&a *a"])
        )
    assert TARGETS[name].outcome(bytes(content)) in ("read", "refused")


@pytest.mark.parametrize("name", [*JSON, *YAML])
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"- ", b"{a: "])
def test_deep_nesting_is_refused(name: str, opening: bytes) -> None:
    assert TARGETS[name].outcome(opening * 100_000) == "refused"


@pytest.mark.parametrize("name", YAML)
def test_yaml_that_refers_to_itself_and_grows_is_refused(name: str) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert TARGETS[name].outcome("\n".join(rows).encode()) == "refused"
    assert TARGETS[name].outcome(b"a: &a [*a]") == "refused"


@pytest.mark.parametrize("name", [*JSON, *YAML])
def test_huge_names_are_no_trouble(name: str) -> None:
    seed, huge = TARGETS[name].seeds[0], b"n" * 10_000_000
    for old in (b"tiny", b"skip_chain", b"approx_dp", b"small", b"dtr", b'"source"'):
        if old in seed:
            try:
                TARGETS[name].outcome(seed.replace(old, huge, 1))
            except Exception as error:
                # A traceback would show the name.
                pytest.fail(f"{type(error).__name__}: {str(error)[:200]}", pytrace=False)
