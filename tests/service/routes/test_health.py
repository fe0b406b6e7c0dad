def test_livez_and_readyz_say_what_runs(client):
    assert client.get("/livez").json() == {"status": "alive"}
    for path in ("/readyz", "/health"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert answer.json() == {
            "status": "ready",
            "models": ["causal-lm", "masked-lm", "perceiver", "reversal"],
            "failures": {},
        }
