"""The files behind GRAPH, none of which a call may overwrite."""

from __future__ import annotations

from os.path import isfile  # unlike that of Path, false for a name that no file can have
from pathlib import Path

from remat_cli.errors import GraphError
from remat_cli.formats.functions import file_of
from remat_cli.formats.model_config import config_file
from remat_cli.formats.source import Source

# The key of a reference in an ONNX file: without it, the file is not parsed.
_REFERENCE = b"location"


def files_read(path: Path) -> tuple[Path, ...]:
    """Return the files that `path` stands for.

    FILE.py:NAME and package.module:NAME are in one file, a folder stands for the config in it; an ONNX model refers to
    its external data. Other files stand for themselves. A file that cannot be parsed does, too: reading it will say
    what is wrong.
    """
    file = config_file(file_of(path))
    if not isfile(file):
        return (file,)
    source = Source(file)
    try:
        if source.is_json or _REFERENCE not in source.content:
            return (file,)
        from remat_cli.formats.onnx.external_data import external_files
        from remat_cli.formats.onnx.load import parsed

        model = parsed(source)
    except GraphError:
        return (file,)
    # A reference is relative to the folder of the model or, if the model is a link, of its target.
    return (file, *(data for home in {file, file.resolve()} for data in external_files(model, home).values()))
