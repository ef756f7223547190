"""The exit code of a broker tells whether its settings or its environment are at fault."""

import pytest

from daybook.broker.__main__ import _report
from daybook.broker.errors import CannotJoinError
from daybook.wire.logging import silent_log
from daybook.wire.settings import ConfigError


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([ConfigError("revoked_tokens_file x: no such file")], 1),
        ([CannotJoinError("other ledgers")], 2),
        ([OSError("the port is taken")], 2),
        ([ConfigError("a key"), OSError("the port is taken")], 2),
        ([ConfigError("a key"), ValueError("a bug")], 3),
    ],
)
def test_wrong_settings_and_other_obstacles_have_codes_of_their_own(
    errors: list[BaseException], code: int
) -> None:
    assert _report(silent_log(), errors) == code
