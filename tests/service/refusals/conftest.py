"""What every call says of a wrong value."""

import re

import pytest

from tests.service.wrong import GOOD


@pytest.fixture
def refuse_value(refuse):
    """A wrong value in an otherwise good body is told by field, what was expected and what came."""

    def refuse_value(path, field, value, message, good=None):
        body = GOOD[path] if good is None else good
        error = refuse(path, body | {field: value}, 422)
        assert re.sub(r"\[\d\]", "", error["param"]) == field
        assert f": {message}" in error["message"]
        assert ", got " in error["message"]

    return refuse_value
