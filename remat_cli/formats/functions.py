"""GRAPH as a function: `FILE.py:NAME` or `package.module:NAME`, found and called."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from os.path import exists  # unlike that of Path, false for a name that no file can have
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from remat_cli.errors import GraphError, UsageError
from remat_cli.formats.reader import ALL_OTHER_DIMS, UnknownDim
from remat_cli.formats.user_files import noting_files
from remat_cli.settings import Setting

# A dotted name, or anything that ends in .py; then the function's name.
_REFERENCE = re.compile(r"(?P<where>.*\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<name>[^\W\d]\w*)", re.DOTALL)


def names_function(path: Path) -> bool:
    """Tell whether `path` names a function rather than a file: only then is any of the user's Python run."""
    return _REFERENCE.fullmatch(str(path)) is not None and not exists(path)


def parts(reference: str) -> tuple[str, str]:
    """Return the file or module, and the function's name.

    Raises:
        UsageError: it names no function.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise UsageError(f"{reference!r} names no function", hint="write FILE.py:NAME or package.module:NAME")
    return match["where"], match["name"]


def file_of(path: Path) -> Path:
    """Return the file of a function, found without running it; of anything else, `path` itself."""
    if not names_function(path):
        return path
    where, _ = parts(str(path))
    return Path(where) if where.endswith(".py") else _file_of_module(where) or path


def _file_of_module(name: str) -> Path | None:
    """Return a module's file, or None; unlike `find_spec` of importlib.util, import no package around it."""
    places: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    file = None
    names = name.split(".")
    for length in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:length]), places)
        if spec is None:
            return None
        places, file = spec.submodule_search_locations, spec.origin
    return None if file is None else Path(file)


def graph_next_to(folder: Path, graph: str) -> Path:
    """Return the name of GRAPH in a file in `folder`: a path is relative to that folder, a module is found as ever."""
    path, match = folder / graph, _REFERENCE.fullmatch(graph)
    of_module = match is not None and not match["where"].endswith(".py")
    return Path(graph) if of_module and not exists(path) else path


def load_function(reference: str) -> Callable[..., Any]:
    """Import a function by its reference.

    A file is imported under its own name, with its folder first among the places that Python imports from, as
    `python FILE.py` has it; a module as `python -m` does, from the current folder on.

    Raises:
        UsageError: it has no such function.
        GraphError: there is no such file or module, or it cannot be imported.
    """
    where, name = parts(reference)
    with noting_files():
        module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    function = getattr(module, name, None)
    if not callable(function):
        known = [name for name, value in vars(module).items() if _is_own_function(module, value)]
        has = f"it has {', '.join(known[:8])}" if known else "it defines no function"
        raise UsageError(f"{where} has no function {name!r}", hint=f"check the name: {has}")
    return function  # type: ignore[no-any-return]


def _is_own_function(module: ModuleType, value: object) -> bool:
    own = inspect.isfunction(value) and value.__module__ == module.__name__
    return own and not value.__name__.startswith("_")  # type: ignore[attr-defined]


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise GraphError(f"{path}: no such file", hint="check the path in front of the colon")
    _import_from(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported", hint="is it Python?")
    module = importlib.util.module_from_spec(spec)
    # Pickling and dataclasses look a class's module up by its name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failed_import(str(path), error) from error
    return module


def _load_module(name: str) -> ModuleType:
    _import_from(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise GraphError(
                f"there is no module {name!r}", hint="check its name, and that Python finds it from here"
            ) from None
        raise _failed_import(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed_import(name, error) from error


def _import_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _failed_import(where: str, error: BaseException) -> GraphError:
    hint = "does Python run it by itself?"
    if isinstance(error, SystemExit):
        hint = 'what is to run only by itself, put under: if __name__ == "__main__"'
    return GraphError(f"{where} cannot be imported: {type(error).__name__}: {error}{_at(error)}", hint=hint)


def _at(error: BaseException) -> str:
    """Return where in the user's code an error came up, as text to append; a syntax error says so itself."""
    frames = [] if isinstance(error, SyntaxError) else extract_tb(error.__traceback__)
    files = [frame for frame in frames if not frame.filename.startswith("<")]
    return f" ({files[-1].filename}:{files[-1].lineno})" if files else ""


def checked_dims(function: Callable[..., Any], reference: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Check that the function takes these dims, and needs no others; return them, with a value for each that it needs.

    Args:
        function: its arguments are the dims.
        reference: names it in messages.
        dims: by name; the value under `ALL_OTHER_DIMS` goes to those that have no default.

    Raises:
        UsageError: it does not take one of them, or one that it needs is not given.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [parameter.name for parameter in named]
    named_dims = {name: size for name, size in dims.items() if name != ALL_OTHER_DIMS}
    for dim in named_dims:
        if dim not in names and not takes_any:
            raise UnknownDim(
                f"{reference} takes no dim {dim!r}",
                dim,
                hint=f"it takes {', '.join(names)}" if names else "it takes none: give its function an argument",
            )
    missing = [p.name for p in named if p.default is p.empty and p.name not in dims]
    if ALL_OTHER_DIMS in dims:
        return dict.fromkeys(missing, dims[ALL_OTHER_DIMS]) | named_dims
    if missing:
        given = Setting("dims", dict.fromkeys(missing, "N"))
        raise UsageError(f"{reference} needs {', '.join(map(repr, missing))}", hint=("give ", given))
    return named_dims
