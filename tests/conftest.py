"""What all tests share: eight virtual CPU devices, strict dtypes and ranks, and tiny models.

``models``, ``training`` and ``service`` are imported inside fixtures: at the top of this file they
would be loaded before pytest installs the hook that checks their annotations.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["MPLBACKEND"] = "agg"
# Tests compile much and run little: unoptimised code of the older emitters, each program in one
# piece, is there in a third of the time.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_parallel_codegen_split_count=1",
    ]
).strip()

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, settings

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# The same examples every time, and no deadline: a busy machine is no failure.
settings.register_profile(
    "repeatable",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

# Long enough for the book's windows (103,063 characters) and the Perceiver's held-out stretch.
CORPUS_CHARACTERS = 120_000


@pytest.fixture(scope="session", autouse=True)
def compile_once(tmp_path_factory):
    """Programs that several tests compile are kept for the session, and for no other."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))


@pytest.fixture(scope="session")
def shared_executables(tmp_path_factory):
    """Where services of this session keep executables, so that only the first of them compiles.

    Workers that run tests side by side share it: what one has compiled, the others load.
    """
    root = tmp_path_factory.getbasetemp()
    directory = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "kept"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def corpus_text():
    """A text in place of the book's, already normalised: words of few letters, drawn by seed."""
    generator = np.random.default_rng(0)
    words = ["".join(generator.choice(list("etaoin"), size)) for size in (1, 2, 3, 4, 5, 6) * 8]
    text = " ".join(generator.choice(words, CORPUS_CHARACTERS // 4))
    assert len(text) > CORPUS_CHARACTERS
    return text


@pytest.fixture(scope="session")
def recipes(corpus_text):
    """The four recipes in their debug preset, over the synthetic corpus, by the name of each."""
    from training.causal_lm import CausalLMRecipe
    from training.corpus import Corpus
    from training.masked_lm import MaskedLMRecipe, vocabulary
    from training.perceiver import PerceiverRecipe
    from training.reversal import ReversalRecipe

    corpus = Corpus(vocabulary.encode(corpus_text), "0" * 64, "synthetic")
    return {
        "masked-lm": MaskedLMRecipe.debug(corpus),
        "reversal": ReversalRecipe.debug(),
        "perceiver": PerceiverRecipe.debug(corpus),
        "causal-lm": CausalLMRecipe.debug(corpus),
    }


@pytest.fixture(scope="session")
def tiny_models(recipes):
    """An untrained model of every wiring in its debug size, by the name of the recipe."""
    from flax import nnx

    from models.wirings import WIRINGS

    identities = {name: recipe.identity() for name, recipe in recipes.items()}
    return {
        name: WIRINGS[identity.wiring].model(identity.config, rngs=nnx.Rngs(0))
        for name, identity in identities.items()
    }


@pytest.fixture(scope="session")
def recording():
    """Gives a subclass of a dataclass that notes what is read of it while ``read`` is a set."""

    def subclass(dataclass):
        class Recording(dataclass):
            read = None

            def __getattribute__(self, name):
                notes = type(self).read
                if notes is not None:
                    notes.add(name)
                return object.__getattribute__(self, name)

        return Recording

    return subclass


@pytest.fixture(scope="session")
def masked_lm(tiny_models):
    return tiny_models["masked-lm"]


@pytest.fixture(scope="session")
def encoder_decoder(tiny_models):
    return tiny_models["reversal"]


@pytest.fixture(scope="session")
def perceiver(tiny_models):
    return tiny_models["perceiver"]


@pytest.fixture(scope="session")
def causal_lm(tiny_models):
    return tiny_models["causal-lm"]


@pytest.fixture(scope="session")
def cards(recipes):
    """What each tiny model would say of itself in a bundle, by the name of the recipe."""
    import dataclasses

    from models.checkpoint import ModelCard

    def card(name, recipe):
        identity = recipe.identity()
        return ModelCard(
            name=identity.name,
            version=1,
            created=1_700_000_000,
            wiring=identity.wiring,
            config=dataclasses.asdict(identity.config),
            vocabulary=identity.vocabulary,
            target_vocabulary=identity.target_vocabulary,
            limits=identity.limits,
            task=identity.task,
            recipe={
                "preset": "debug",
                "seed": recipe.seed,
                "command": f"python -m training {name} --preset debug --seed {recipe.seed}",
            },
            corpus=identity.corpus,
        )

    return {name: card(name, recipe) for name, recipe in recipes.items()}


@pytest.fixture(scope="session")
def tiny_checkpoints(tmp_path_factory, cards, tiny_models):
    """A checkpoints directory that holds the four tiny models; not to be written to."""
    from models.checkpoint import save_model

    root = tmp_path_factory.mktemp("tiny_checkpoints")
    for name, card in cards.items():
        save_model(root, card, tiny_models[name])
    return root
