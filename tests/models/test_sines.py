import jax
import numpy as np
import pytest

from models.sines import sine_and_cosine

# A rounding or two of numbers up to 1, and what is lost of the angle where it is reduced.
TOLERANCE = 2e-7
LARGEST = 1e5


@pytest.mark.parametrize("largest", [1.0, 100.0, LARGEST])
def test_both_are_right_for_angles_of_any_size(largest):
    angles = np.linspace(-largest, largest, 100_003, dtype=np.float32)
    sines, cosines = jax.jit(sine_and_cosine)(angles)
    exact = angles.astype(np.float64)
    np.testing.assert_allclose(sines, np.sin(exact), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(cosines, np.cos(exact), rtol=0, atol=TOLERANCE)


def test_both_are_right_next_to_every_eighth_of_a_turn():
    eighths = (np.arange(-40_000, 40_001) * (np.pi / 4)).astype(np.float32)
    for angles in (eighths, np.nextafter(eighths, np.float32(0)), -eighths):
        sines, cosines = jax.jit(sine_and_cosine)(angles)
        exact = angles.astype(np.float64)
        np.testing.assert_allclose(sines, np.sin(exact), rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(cosines, np.cos(exact), rtol=0, atol=TOLERANCE)


def test_what_is_no_number_stays_none():
    found = jax.jit(sine_and_cosine)(np.full(3, np.nan, np.float32))
    assert np.isnan(found).all()
