"""Plain FastAPI: a ``def``, which runs in one of its threads, and one call of the model a request.

Run by uvicorn with ``--app-dir benchmarks/peers fastapi_app:app``.
"""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.serving.function import FillMask

app = FastAPI()
fill_mask = FillMask(batch_sizes=(1,))


class Request(BaseModel):
    """One text with one mask."""

    text: str


@app.post("/predict")
def predict(request: Request) -> dict[str, Any]:
    """The candidates of the mask."""
    return {"candidates": fill_mask([request.text])[0]}
