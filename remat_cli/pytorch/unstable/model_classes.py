"""Models of transformers, by the names that a config has of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings, simplefilter

from torch import nn


def config_of(model_type: str, document: Mapping[str, Any]) -> Any | None:
    """Return the config of a model; None if transformers does not know its type.

    Raises:
        ValueError: transformers refuses a value.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return None
    try:
        return CONFIG_MAPPING[model_type].from_dict(dict(document))
    except StrictDataclassError as error:
        raise ValueError(str(error.__cause__ or error)) from error


def class_of(architecture: str) -> Any | None:
    """Return the class of a model by its name; None if transformers has none."""
    import transformers

    named = getattr(transformers, architecture, None)
    is_model = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
    return named if is_model else None


def classes_for(model_type: str) -> list[str]:
    """Return the names of all classes of a model type that have a head."""
    from transformers.models.auto import modeling_auto

    tables = [table for name, table in vars(modeling_auto).items() if name.endswith("_MAPPING_NAMES")]
    named = (table.get(model_type) for table in tables if isinstance(table, Mapping))
    return sorted({name for name in named if isinstance(name, str) and "For" in name})


def built(model_class: Any, config: Any, choices: Mapping[str, Any]) -> nn.Module:
    """Return a model with new weights.

    Args:
        model_class: the class of the model.
        config: its config.
        choices: element type and attention, if not the config's.
    """
    model: nn.Module = model_class._from_config(config, **choices)
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from remarks on a config, which stand on stderr."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with catch_warnings():
            simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
