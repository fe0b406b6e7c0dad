"""The whole service under many clients at once."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.service.numbers import split
from tests.service.tiny import MAX_INPUT_LEN, WIDTH, WINDOW

NUM_CLIENTS = 12
NUM_REQUESTS = 160


def draw_request(generator):
    """A right request of any kind and size, with an answer that does not depend on chance."""
    count = generator.choice([1, 1, 2, 5, 13])
    kind = generator.choice(
        ["fill-mask", "decode", "text", "features", "embeddings", "completions"]
    )

    def words(size):
        return "".join(generator.choices("abc xyz", k=size))

    if kind == "fill-mask":
        texts = [words(generator.randint(0, 30)) + "_" for _ in range(count)]
        attention = generator.random() < 0.3 and max(map(len, texts)) <= 16
        options = {"attention": attention, "evidence": generator.random() < 0.3}
        return "/v1/fill-mask", {"inputs": texts, "mask_token": "_"} | options
    if kind == "decode":
        sources = ["".join(generator.choices("abcdefghijklmnop", k=12)) for _ in range(count)]
        options = {"attention": generator.random() < 0.3, "num_beams": generator.choice([1, 1, 4])}
        return "/v1/decode", {"inputs": sources} | options
    if kind == "text":
        texts = [words(generator.randint(1, MAX_INPUT_LEN)) for _ in range(count)]
        return "/v1/latents", {"inputs": texts, "reconstruct": generator.random() < 0.3}
    if kind == "embeddings":
        model, longest = generator.choice([("masked-lm", WINDOW), ("perceiver", MAX_INPUT_LEN)])
        texts = [words(generator.randint(1, longest)) for _ in range(count)]
        return "/v1/embeddings", {"model": model, "input": texts}
    if kind == "features":
        rows = [generator.randint(1, 20) for _ in range(count)]
        draw = np.random.default_rng(generator.randint(0, 10**9)).normal
        return "/v1/latents", {"features": [draw(size=(n, WIDTH)).tolist() for n in rows]}
    prompts = [words(generator.randint(0, 15)) for _ in range(count)]
    options = {"max_tokens": generator.randint(1, 30), "temperature": 0, "logprobs": 1}
    return "/v1/completions", {"prompt": prompts} | options


def test_many_clients_at_once_each_get_the_answer_to_their_own_request(client):
    compilations = client.app.state.compilations
    assert compilations.is_ready
    before = compilations.total, compilations.after_ready
    generator = random.Random(0)
    requests = [draw_request(generator) for _ in range(NUM_REQUESTS)]

    def answer(request):
        path, body = request
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        numbers = []
        return split(answer.json(), numbers), numbers

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        together = list(clients.map(answer, requests))
    for request, (found, numbers) in zip(requests, together, strict=True):
        alone, expected = answer(request)
        assert found == alone
        # Rows that share a batch with others can differ in the last bits.
        np.testing.assert_allclose(numbers, expected, atol=1e-4)
    assert (compilations.total, compilations.after_ready) == before, "compiled while serving"
