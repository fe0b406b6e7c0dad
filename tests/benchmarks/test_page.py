import json

import pytest

from benchmarks import __main__ as everything
from benchmarks import decode, forward, latents, page, plots, report, serve
from benchmarks.page import PageError

MACHINE = {
    "cpu": "Some CPU",
    "num_cpus": 2,
    "load_before": 0.25,
    "python": "3.11.7",
    "command": "python -m benchmarks.x",
    "jax": "0.10",
}


def compared(names, ours):
    taken = {name: [[1.0 + index], [1.5 + index]] for index, name in enumerate(names)}
    return report.compare(taken, ours, [name for name in names if name != ours])


def of_forward():
    everyone = (forward.OURS, *forward.PEERS, forward.OURS_NARROW, forward.PEER_NARROW)
    taken = {name: [[1.0 + index], [1.5 + index]] for index, name in enumerate(everyone)}
    found = report.compare_widths(taken, forward.OURS, forward.PEERS)
    work = [
        {"work": work, "batch": batch, **found}
        for work in forward.WORKS
        for batch in forward.BATCH_SIZES
    ]
    versions = {"torch eager": "2.13", "onnxruntime": "1.32"}
    return forward, {"machine": {**MACHINE, **versions}, "work": work}


def of_decode():
    everyone = (decode.OURS, *decode.PEERS)
    work = [
        {"length": length, "batch": batch, **compared(everyone, decode.OURS)}
        for length in decode.LENGTHS
        for batch in decode.BATCH_SIZES
    ]
    return decode, {"machine": MACHINE, "work": work}


def of_latents():
    """Time of ours grows as N, that of self-attention as its square, which also stops early."""
    work = []
    for length in latents.LENGTHS:
        power = {latents.FULL: 2, latents.FULL_TORCH: 2}
        able = [n for n in latents.EVERYONE if length <= latents.MAX_LENGTH.get(n, length)]
        times = {name: report.summary([(length / 1000) ** power.get(name, 1)] * 3) for name in able}
        speed = {name: report.summary([2.0, 3.0, 4.0]) for name in able if name != latents.OURS}
        memory = dict.fromkeys(able, 12.0)
        at = {"contestants": times, "memory_mib": memory}
        at |= {"speed_against": speed, "narrow_against": speed}
        work.append({"length": length, **at})
    exponents = {name: latents.exponents(work, name) for name in latents.EVERYONE}
    return latents, {"machine": MACHINE, "work": work, "exponents": exponents}


def of_serve():
    load = {"per_s": 100.0, "p50_ms": 2.0, "p99_ms": 9.0, "num_errors": 0, "client_cpu_us": 10.0}
    costs = {"start_s": 3.0, "held_mib": 250.0, "idle_cpu_share": 0.25, "paused": load}
    silent = {**load, "per_s": 0.0, "p50_ms": None, "p99_ms": None}
    rounds = [{**costs, "loads": {"1": load, "8": load}}] * 2
    model = [{"rates": {"1x1": 200.0, "4x2": 900.0}, "paused_ms": 1.5}] * 2
    broken = [{**costs, "loads": {"1": silent, "8": load}}] * 2
    results = {"model": model, "triwire": rounds, "ray x1": broken, "litserve x1": []}
    return serve, {"machine": MACHINE, "connections": [1, 8], "results": results}


RESULTS = {
    "forward": of_forward,
    "decode": of_decode,
    "latents": of_latents,
    "serve": of_serve,
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_measurement_fills_its_part_of_the_page_with_table_and_picture(name, tmp_path):
    module, results = RESULTS[name]()
    out = tmp_path / "results" / f"{name}.json"
    report.write(out, results, module.table(results))
    target = tmp_path / "benchmarks.md"
    before = f"above\n<!-- {name} -->\nold\n<!-- /{name} -->\nbelow\n"
    target.write_text(before)
    assert page.renew(target, out.parent) == [name]
    text = target.read_text()
    assert module.table(results) in text
    assert "old" not in text
    assert text.startswith(f"above\n<!-- {name} -->\n| ")
    assert text.endswith(f"(benchmarks/{name}.svg)\n<!-- /{name} -->\nbelow\n")
    picture = tmp_path / "benchmarks" / f"{name}.svg"
    assert picture.read_text().startswith("<?xml")
    drawn = picture.read_bytes()
    page.renew(target, out.parent)
    assert target.read_text() == text
    assert picture.read_bytes() == drawn


def test_a_table_of_the_forward_pass_tells_speed_and_target():
    module, results = of_forward()
    wide, narrow = (part.splitlines()[-1] for part in module.table(results).split("\n\n"))
    # Ours took 1.0 and 1.5, the fastest peer 2.0 and 2.5.
    assert wide.startswith("| ids to top 5 | 128 | 1.25 (")
    assert wide.endswith("| >= 1.4 |")
    assert "| 1.83 (" in wide
    # In half the width ours took 5.0 and 5.5, and the fastest peer is the same.
    assert narrow.startswith("| ids to top 5 | 128 | 5.25 (")
    assert narrow.endswith("| torch.compile |")
    assert "| 0.427 (" in narrow


def test_growth_is_told_over_all_lengths_and_over_the_long_ones():
    module, results = of_latents()
    assert results["exponents"][latents.OURS] == pytest.approx({"all": 1, "long": 1})
    assert results["exponents"][latents.FULL] == pytest.approx({"all": 2, "long": 2})
    short = results["work"][:2]
    assert latents.exponents(short, latents.OURS)["long"] is None
    longest = [line for line in module.table(results).splitlines() if line.startswith("| 16384")]
    assert [row.count("|  |") for row in longest] == [1, 2, 1]


def test_what_was_measured_is_told_with_machine_and_versions():
    told = page.circumstances({**MACHINE, "torch eager": {"torch": "2.13", "transformers": "5"}})
    assert told == (
        "`python -m benchmarks.x` on 2 cores of Some CPU, load 0.2 before; "
        "Python 3.11.7, jax 0.10, torch 2.13, transformers 5."
    )


def test_a_part_that_the_page_lacks_or_has_twice_is_an_error():
    for text in ("nothing", "<!-- a --><!-- /a --> <!-- a --><!-- /a -->"):
        with pytest.raises(PageError, match="expected <!-- a --> and <!-- /a --> once"):
            page.fill(text, "a", "content")


def test_a_directory_without_results_is_an_error(tmp_path):
    with pytest.raises(PageError, match=r"expected results as NAME\.json, found none"):
        page.renew(page.PAGE, tmp_path)


@pytest.mark.parametrize("name", everything.NAMES)
def test_the_page_has_a_part_for_every_measurement(name):
    text = page.PAGE.read_text(encoding="utf-8")
    assert "new content" in page.fill(text, name, "new content")
    assert f"python -m benchmarks.{name}`" in text


def test_only_measurements_have_pictures():
    assert set(plots.PLOTS) <= set(everything.NAMES)


def test_results_are_json_with_their_table(tmp_path):
    report.write(tmp_path / "x" / "a.json", {"work": [1]}, "| a |")
    assert json.loads((tmp_path / "x" / "a.json").read_text()) == {"work": [1], "table": "| a |"}
