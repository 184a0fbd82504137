"""One model exported in several ways, and what PyTorch keeps of it: `python -m tests.bench.exported NAME FOLDER`.

Runs in a process of its own, as exporters leave much behind, and print more.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from tests.bench.onnx_models import MODELS, Case

# What `torch.onnx.export` is told beside the model; one that is exported for inference is in evaluation mode.
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "dynamo, optimize=False, opset 23": {"dynamo": True, "optimize": False, "opset_version": 23},
    "dynamo, optimize=False, opset 18": {"dynamo": True, "optimize": False, "opset_version": 18},
    "dynamo": {"dynamo": True},
    "legacy": {
        "dynamo": False,
        "training": torch.onnx.TrainingMode.TRAINING,
        "do_constant_folding": False,
        "opset_version": 17,
    },
    "dynamo, eval()": {"dynamo": True},
    "legacy, eval()": {"dynamo": False, "opset_version": 17},
}
TRAINING_RECIPES = tuple(recipe for recipe in RECIPES if "eval()" not in recipe)
# By exporter: how a model is exported for training, and for inference.
EXPORTERS = {
    "dynamo": ("dynamo, optimize=False, opset 23", "dynamo, eval()"),
    "legacy": ("legacy", "legacy, eval()"),
}
FOUND = "found.json"


def file_of(folder: Path, recipe: str) -> Path:
    """Return where a recipe's file lies."""
    return folder / f"recipe{list(RECIPES).index(recipe)}.onnx"


class MaskOfBytes(TorchFunctionMode):
    """Dropout as GPUs do it, with a mask of one byte an element; on the CPU PyTorch keeps one of floats."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.dropout:
            return dropped(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def dropped(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    return torch.native_dropout(x, p, training)[0] if p and training else x


def kept_float_bytes(case: Case) -> int:
    """Return the bytes of floats that autograd keeps, each storage once, beside parameters, buffers and inputs.

    Without oneDNN, whose LSTM keeps its floats in a block of bytes; on nothing else has it a bearing.
    """
    given = (*case.model.parameters(), *case.model.buffers(), *case.inputs)
    own = {tensor.untyped_storage().data_ptr() for tensor in given}
    storages: dict[int, tuple[torch.Tensor, int]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.dtype.is_floating_point:
            storages[storage.data_ptr()] = tensor, storage.nbytes()  # held, so that nothing else comes to lie there
        return tensor

    without = torch.backends.mkldnn.flags(enabled=False)
    with saved_tensors_hooks(pack, lambda tensor: tensor), MaskOfBytes(), without:
        case.model(*case.inputs)
    return sum(size for _, size in storages.values())


def export(case: Case, recipe: str, folder: Path) -> str:
    """Export the model; return why not, if it cannot be."""
    path = file_of(folder, recipe)
    case.model.train(recipe in TRAINING_RECIPES)
    quiet: dict[str, Any] = {"verbose": False} if RECIPES[recipe]["dynamo"] else {}
    names = [f"input{number}" for number in range(len(case.inputs))]
    try:
        torch.onnx.export(case.model, case.inputs, str(path), input_names=names, **quiet, **RECIPES[recipe])
        if case.then is not None:
            case.then(path)
    except Exception as error:  # a row of the table: the exporter itself fails
        path.unlink(missing_ok=True)
        return f"{type(error).__name__}: {' '.join(str(error).split())[:60]}"
    return ""


def main(name: str, folder: Path, recipes: list[str]) -> None:
    """Export one model in these ways into a folder, and write what is known of it beside."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    case = MODELS[name]()
    case.model.train()
    found = {"kept": kept_float_bytes(case), "failed": {recipe: export(case, recipe, folder) for recipe in recipes}}
    (folder / FOUND).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or list(RECIPES))
