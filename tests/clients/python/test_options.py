"""The clients without trio have all options of the client for trio, with the same types."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from daybook.clients.python.client import Client
from daybook.clients.python.options import (
    ConsumerOptions,
    ProducerOptions,
    ReaderOptions,
    TableViewOptions,
)

# They say what messages are, so each client has its own type of them.
_TYPED = ("schema", "listener")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (Client.create_producer, ProducerOptions),
        (Client.subscribe, ConsumerOptions),
        (Client.create_reader, ReaderOptions),
        (Client.table_view, TableViewOptions),
    ],
)
def test_options_have_the_names_and_types_of_the_signature(
    method: Callable[..., object], options: Any
) -> None:
    stated = {
        each.name: each.annotation
        for each in inspect.signature(method).parameters.values()
        if each.kind is inspect.Parameter.KEYWORD_ONLY and each.name not in _TYPED
    }
    assert stated == options.__annotations__
    assert options.__optional_keys__ == set(stated)
