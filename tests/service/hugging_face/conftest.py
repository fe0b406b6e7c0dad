"""The client of the Hugging Face Hub, unmodified, at addresses of a live service."""

import pytest
from huggingface_hub import InferenceClient


@pytest.fixture(scope="session")
def hub(live):
    """A client of a model, or of one of its tasks."""

    def hub(path, **options):
        return InferenceClient(base_url=f"{live.base_url}/models/{path}", **options)

    return hub


@pytest.fixture(scope="session")
def native(live):
    """The answer of a native call that must succeed."""

    def native(call, **body):
        answer = live.post(f"/v1/{call}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return native
