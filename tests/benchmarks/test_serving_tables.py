from benchmarks.serving.tables import ceiling, tables

LOAD = {"per_s": 100.0, "p50_ms": 2.0, "p99_ms": 9.0, "num_errors": 1, "client_cpu_us": 10.0}


def model(**rates):
    return {"rates": rates, "paused_ms": 1.5}


def test_the_ceiling_is_the_best_form_that_the_requests_under_way_can_fill():
    rounds = [{"rates": {"1x1": 5.0, "8x1": 9.0, "8x2": 14.0, "32x1": 20.0}}] * 3
    assert [ceiling(rounds, c) for c in (1, 8, 16, 32, 128)] == [5, 9, 14, 20, 20]


def test_the_ceiling_is_a_median_over_rounds():
    assert ceiling([{"rates": {"1x1": rate}} for rate in (1.0, 100.0, 3.0)], 8) == 3


def test_tables_hold_every_server_with_its_medians_errors_and_costs():
    round_ = {
        "start_s": 3.0,
        "held_mib": 250.0,
        "idle_cpu_share": 0.25,
        "loads": {"1": LOAD, "8": {**LOAD, "per_s": 300.0}},
        "paused": {**LOAD, "p50_ms": 2.0},
    }
    slower = {**round_, "loads": {"1": LOAD, "8": {**LOAD, "per_s": 200.0}}}
    told = tables(
        {
            "model": [{"rates": {"1x1": 400.0}, "paused_ms": 1.5}] * 3,
            "triwire": [round_, slower, slower],
        },
        [1, 8],
    )
    rates, costs, ours = told.split("\n\n")
    assert "| of the model alone | 25% | 50% |" in ours
    assert "| p99 / p50 | 4.50 | 4.50 |" in ours
    assert "| model alone | 400 | 400 |  |" in rates
    assert "| triwire | 100 (100-100), 2 / 9 | 200 (200-300), 2 / 9 | 6 |" in rates
    assert costs.splitlines()[-1] == "| triwire | 3 | 250 | 25.0% | 2 | 0.5 | 10 |"


def test_who_did_not_come_to_answer_is_named():
    told = tables({"model": [model(**{"1x1": 4.0})], "ray x1": [], "ray x2": []}, [1])
    assert told.endswith("Did not come to answer: ray x1, ray x2.")


def test_a_load_without_answers_is_told_as_such():
    silent = {**LOAD, "per_s": 0.0, "p50_ms": None, "p99_ms": None, "num_errors": 100}
    round_ = {"start_s": 3.0, "held_mib": 1.0, "idle_cpu_share": 0.0, "paused": silent}
    told = tables(
        {
            "model": [{"rates": {"1x1": 4.0}, "paused_ms": 1.0}],
            "x": [{**round_, "loads": {"1": silent}}],
        },
        [1],
    )
    assert "| x | 0 (0-0), nan / nan | 100 |" in told
