"""The command without a service behind it: what it asks, what it shows, and how it ends."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.triwire.scripted import DECODED, READY, TOKEN, Answer, error, events, scripted
from triwire.cli import rooms
from triwire.cli.inputs import UsageError
from triwire.cli.main import main

ROOT = Path(__file__).parent.parent.parent
FILLED = {
    "model": "masked-lm",
    "version": 1,
    "results": [
        {
            "normalized": "<mask>b\x1b",
            "filled": "ab\x1b",
            "masks": [
                {"index": 0, "position": 0, "char_start": 0, "char_end": 1, "window": [0, 2]}
                | {"entropy": 0.5, "candidates": [{"token": "a", "token_id": 1, "score": 0.75}]}
            ],
        }
    ],
}


@pytest.fixture
def typed(monkeypatch):
    """Standard input that holds these bytes."""

    def typed(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return typed


def run(*answers, arguments):
    """The exit status of a command whose service gives these answers, and what that was asked."""
    with scripted(*answers) as server:
        status = main([*arguments, "--url", server.url, "--retries", "0"])
    return status, [json.loads(request["body"] or b"null") for request in server.asked]


ENDS = [
    (Answer(200, DECODED), 0),
    (error(400), 3),
    (error(401, "invalid_api_key"), 4),
    (error(403, "not_allowed"), 4),
    (error(404, "model_not_found"), 3),
    (error(413, "too_large"), 3),
    (error(415), 3),
    (error(422), 3),
    (error(429, "queue_full"), 1),
    (error(500, "internal_error"), 1),
    (error(503, "not_ready"), 1),
    (error(504, "deadline_exceeded"), 1),
    (Answer(200, b"hello"), 1),
    (Answer(), 1),
]


@pytest.mark.parametrize(("answer", "expected"), ENDS)
def test_the_exit_status_tells_whose_fault_it_was(capsys, answer, expected):
    status, _ = run(answer, arguments=["decode", "a"])
    assert status == expected
    told = capsys.readouterr()
    assert bool(told.out) == (expected == 0)
    assert told.err.startswith("triwire: ") == (expected != 0)
    if answer.status == 422:
        assert told.err == "triwire: inputs: expected more (request r1)\n"


USAGE = [
    ([], "required"),
    (["dance"], "dance"),
    (["decode", "a", "--num-beams", "0"], "expected a whole number from 1, got '0'"),
    (["decode", "a", "--timeout", "never"], "expected seconds above 0, got 'never'"),
    (["decode", "a", "--colour", "never"], "--colour"),
    (["latents", "--retries", "-1"], "expected a whole number from 0, got '-1'"),
]


@pytest.mark.parametrize(("arguments", "told"), USAGE)
def test_wrong_arguments_end_it_with_2_before_anything_is_asked(capsys, arguments, told):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert told in capsys.readouterr().err


WRONG = [
    (["decode", "a", "--head", "1"], "--attention"),
    (["decode", "a", "--url", "localhost"], "base_url: expected http://HOST:PORT"),
    (["decode", "--file", "/no/such/file"], "/no/such/file: No such file"),
    (["latents", "/no/such/file"], "/no/such/file: No such file"),
    (["latents", str(ROOT)], "Is a directory"),
    (["latents", "pyproject.toml", "--json", "-o", "x.npy"], "either --json or --output"),
    (["complete", "a", "--stream", "--n", "2"], "--stream"),
]


@pytest.mark.parametrize(("arguments", "told"), WRONG)
def test_what_cannot_be_done_ends_it_with_2(capsys, arguments, told):
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_a_service_that_is_not_there_ends_it_with_1_and_says_how_to_start_one(capsys):
    with scripted() as server:
        url = server.url
    assert main(["models", "--url", url, "--retries", "0"]) == 1
    assert "triwire serve" in capsys.readouterr().err


def test_ctrl_c_ends_it_quietly(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("triwire.client.Triwire.send", interrupted)
    assert main(["models"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_reader_that_leaves_ends_it_quietly(size):
    """As ``head`` does; what is written then fails, at once or when the buffer is emptied."""
    script = "import sys; from triwire.cli.main import main; sys.exit(main(['models', '--json']))"
    with scripted(Answer(200, {"data": "m" * size})) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"TRIWIRE_URL": server.url, "PYTHONPATH": str(ROOT)},
        )
        child.stdout.close()
        said = child.stderr.read()
        child.stderr.close()
        assert (child.wait(), said) == (141, b"")


def test_texts_come_from_arguments_files_and_standard_input(capsys, typed, tmp_path):
    file = tmp_path / "texts"
    file.write_bytes("b\r\nc d\n\nü".encode())
    typed(b"e\nf\n")
    arguments = ["decode", "a", "-", "--file", str(file), "--json", "--batch-size", "100"]
    status, asked = run(Answer(200, {}), arguments=arguments)
    assert status == 0
    assert asked == [{"inputs": ["a", "e", "f", "b", "c d", "", "ü"]}]


def test_standard_input_is_read_where_nothing_is_given(typed):
    typed(b"abc\n")
    assert run(Answer(200, DECODED), arguments=["decode"])[1] == [{"inputs": "abc"}]


@pytest.mark.parametrize(("content", "told"), [(b"a\xff", "0xff at 1"), (b"", "one line")])
def test_input_that_is_no_text_ends_it_with_2(capsys, typed, content, told):
    typed(content)
    assert main(["decode"]) == 2
    assert told in capsys.readouterr().err


def test_many_texts_are_asked_about_a_few_at_a_time(capsys):
    answer = DECODED | {"results": DECODED["results"] * 2}
    texts = ["a", "b", "c", "d"]
    status, asked = run(
        Answer(200, answer), Answer(200, answer), arguments=["decode", *texts, "--batch-size", "2"]
    )
    assert status == 0
    assert asked == [{"inputs": ["a", "b"]}, {"inputs": ["c", "d"]}]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["source", "a", "b", "c", "d"]


def test_an_error_says_among_which_inputs_and_what_came_before_is_shown(capsys):
    answer = DECODED | {"results": DECODED["results"] * 2}
    arguments = ["decode", "a", "b", "c", "d", "--batch-size", "2"]
    status, _ = run(Answer(200, answer), error(422), arguments=arguments)
    assert status == 3
    told = capsys.readouterr()
    assert "of inputs 2 to 3, counted from 0 there: inputs: expected more" in told.err
    assert len(told.out.splitlines()) == 3


def test_json_is_the_answer_as_it_is_with_numbers_for_arrays(capsys):
    body = b'{"anything": [1, 2]}'
    status, asked = run(Answer(200, body), arguments=["decode", "a", "--json", "--attention"])
    assert status == 0
    assert capsys.readouterr().out.encode() == body + b"\n"
    (request,) = asked
    assert request["attention"] == {"layers": "all", "heads": "mean", "encoding": "float"}


@pytest.mark.parametrize(
    ("text", "symbol"), [("trave_ler", "_"), ("trave<mask>l_r", "<mask>"), ("no mask", "_")]
)
def test_an_underscore_is_a_mask_where_no_text_has_another(capsys, text, symbol):
    _, asked = run(Answer(200, FILLED), arguments=["fill-mask", text])
    assert asked == [{"inputs": text, "mask_token": symbol}]


def test_the_options_of_a_command_are_the_fields_of_the_request():
    arguments = "fill-mask a~ --top-k 2 --target b --target c --mask-token ~ --evidence --model m"
    assert run(Answer(200, FILLED), arguments=arguments.split())[1] == [
        {"inputs": "a~", "top_k": 2, "targets": ["b", "c"], "mask_token": "~"}
        | {"evidence": True, "model": "m"}
    ]
    arguments = "decode a --num-beams 3 --max-new-tokens 4 --attention --layer 1 --head 2 --json"
    assert run(Answer(200, {}), arguments=arguments.split())[1] == [
        {"inputs": "a", "num_beams": 3, "max_new_tokens": 4}
        | {"attention": {"layers": [1], "heads": [2], "encoding": "float"}}
    ]
    arguments = "complete a --max-tokens 2 --temperature 0 --top-p 0.5 --n 2 --stop x --seed 3"
    assert run(Answer(200, {}), arguments=[*arguments.split(), "--echo", "--json"])[1] == [
        {"prompt": "a", "max_tokens": 2, "temperature": 0.0, "top_p": 0.5, "n": 2, "stop": ["x"]}
        | {"seed": 3, "echo": True}
    ]


def test_what_a_terminal_would_obey_is_shown_and_not_obeyed(capsys):
    run(Answer(200, FILLED), arguments=["fill-mask", "_b"])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert r"ab\x1b" in shown
    assert "0.7500" in shown


def test_a_stream_is_written_as_it_comes(capsys):
    model = {"id": "reversal", "wiring": "encoder-decoder", "version": 1, "task": {}}
    model |= {"limits": {}, "created": 0, "target_separator": " "}
    other = model | {"id": "another", "target_separator": ""}
    answers = [
        Answer(200, {"data": [other, model | {"task": {"is_default": True}}]}),
        events(TOKEN, TOKEN | {"position": 1, "token": "AE1"}, DECODED, "[DONE]"),
    ]
    status, asked = run(*answers, arguments=["decode", "a", "--stream"])
    assert status == 0
    assert asked[1] == {"inputs": "a", "stream": True}
    assert capsys.readouterr().out == "a AE1\n"


def test_a_stream_in_json_is_a_line_for_every_event(capsys):
    arguments = ["decode", "a", "--stream", "--json"]
    status, _ = run(events(TOKEN, DECODED, "[DONE]"), arguments=arguments)
    assert status == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [TOKEN, DECODED]


def latents_of(*rows):
    result = [{"latents": [row], "shape": [1, len(row)], "length": 3} for row in rows]
    return Answer(200, {"model": "m", "version": 1, "results": result})


def test_latents_of_a_file_are_saved(capsys, tmp_path):
    text, out = tmp_path / "text", tmp_path / "out.npy"
    text.write_text("a long\ntext\n")
    status, asked = run(latents_of([1.0, 2.0]), arguments=["latents", str(text), "-o", str(out)])
    assert status == 0
    assert asked == [{"inputs": "a long\ntext\n", "encoding_format": "base64"}]
    np.testing.assert_array_equal(np.load(out), np.array([[1, 2]], np.float32))
    assert "1 x 2" in capsys.readouterr().out


def test_an_array_is_read_from_a_file_and_several_are_saved_as_a_stack(tmp_path):
    array, out = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(array, np.ones((3, 2)))
    with scripted(latents_of([1.0], [2.0])) as server:
        arguments = ["latents", str(array), str(array), "-o", str(out), "--url", server.url]
        assert main(arguments) == 0
    sent = np.load(io.BytesIO(server.asked[0]["body"]))
    assert (sent.dtype, sent.shape) == (np.float32, (2, 3, 2))
    assert np.load(out).tolist() == [[[1.0]], [[2.0]]]


def test_an_array_goes_to_standard_output_alone(capfdbinary):
    run(latents_of([5.0]), arguments=["latents", str(ROOT / "Makefile"), "-o", "-"])
    assert np.load(io.BytesIO(capfdbinary.readouterr().out)).tolist() == [[5.0]]


def test_a_file_that_cannot_be_written_ends_it_with_2(capsys, tmp_path):
    out = tmp_path / "nowhere" / "out.npy"
    arguments = ["latents", str(ROOT / "Makefile"), "-o", str(out)]
    assert run(latents_of([5.0]), arguments=arguments)[0] == 2
    assert f"--output: expected a file that can be written, got {out}" in capsys.readouterr().err


def test_a_damaged_array_ends_it_with_2(capsys, tmp_path):
    file = tmp_path / "in.npy"
    file.write_bytes(b"\x93NUMPY\x01\x00 nothing")
    assert main(["latents", str(file)]) == 2
    assert "expected an array in a .npy file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "expected", "told"),
    [(Answer(200, READY), 0, "ready: reversal"), (error(503, "not_ready"), 1, "expected more")],
)
def test_ready_is_for_scripts(capsys, answer, expected, told):
    assert run(answer, arguments=["ready"])[0] == expected
    out, err = capsys.readouterr()
    assert told in (err if expected else out)


@pytest.mark.parametrize("command", ["serve", "train"])
def test_serve_and_train_hand_their_options_on(monkeypatch, command):
    asked = []

    class Room:
        @staticmethod
        def main(arguments):
            asked.append(arguments)
            return 7

    monkeypatch.setattr("importlib.import_module", lambda name: asked.append(name) or Room)
    assert rooms.run(command, ["--port", "9", "--json"], ROOT) == 7
    assert asked[0].split(".")[0] == {"serve": "service", "train": "training"}[command]
    assert asked[1] == ["--port", "9", "--json"]


def test_where_only_the_client_is_installed_serve_and_train_say_so(tmp_path):
    for command in ("serve", "train"):
        with pytest.raises(UsageError, match=f"triwire {command} needs a checkout"):
            rooms.run(command, [], tmp_path)


def test_what_serve_needs_is_named_where_it_is_not_installed(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'jax'", name="jax")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(UsageError, match=r"needs jax, which is not installed.*\[serve\]"):
        rooms.run("serve", [], ROOT)


def test_help_names_every_command_and_every_exit_status(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    for part in ("fill-mask", "decode", "latents", "models", "serve", "train", "exit status"):
        assert part in told
    for status in (0, 1, 2, 3, 4, 130, 141):
        assert f"\n  {status} " in told


def test_it_starts_as_a_module():
    command = [sys.executable, "-m", "triwire", "--version"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("triwire ")
