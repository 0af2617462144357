# SPDX-License-Identifier: Apache-2.0
"""A kernel is used where it can be, after it agreed with the oracle; else its failure is named."""

import dataclasses

import jax
import pytest

from alignax.errors import UsageError
from alignax.models.attention import BACKENDS, AttentionSpec, dense_attention, tiled_attention
from alignax.models.attention.check import Use, choose_attention, fault, settle_attention
from alignax.models.config import DecoderConfig

CONFIG = DecoderConfig("llama", 64, 32, 48, 2, 4, 2, 8)
LOCAL = dataclasses.replace(CONFIG, windows=(None, 40), attention=AttentionSpec(0.5, 2.0))
USE = Use(CONFIG, "float32", tokens=512)


@pytest.mark.parametrize(
    ("name", "platform", "head_dim", "want"),
    [
        ("auto", "cpu", 64, "tiled"),
        ("auto", "tpu", 64, "pallas"),
        ("auto", "tpu", 60, "tiled"),
        ("auto", "gpu", 128, "pallas"),
        ("auto", "gpu", 96, "tiled"),
        ("auto", "METAL", 64, "tiled"),
        ("dense", "tpu", 64, "dense"),
        ("tiled", "gpu", 64, "tiled"),
        ("pallas", "tpu", 80, "pallas"),
    ],
)
def test_choice(name, platform, head_dim, want):
    assert choose_attention(name, platform, head_dim) == want


@pytest.mark.parametrize(
    ("name", "platform", "head_dim", "said"),
    [
        ("pallas", "cpu", 64, "needs tpu or gpu, this machine has cpu"),
        ("pallas", "gpu", 96, "heads of width 96 on gpu"),
        ("splash", "tpu", 64, "'splash' is unknown"),
    ],
)
def test_what_cannot_run_is_refused(name, platform, head_dim, said):
    with pytest.raises(UsageError, match=said):
        choose_attention(name, platform, head_dim)


@pytest.mark.parametrize(("config", "dtype"), [(CONFIG, "float32"), (LOCAL, "bfloat16")])
def test_a_right_kernel_is_used(config, dtype):
    use = Use(config, dtype, tokens=512)
    assert settle_attention("auto", "tpu", use) == ("pallas", None)


def wrong_values(*arguments):
    """A thousandth off."""
    return dense_attention(*arguments) * 1.001


def wrong_window(q, k, v, layout, window, spec):
    """No window."""
    return dense_attention(q, k, v, layout, None, spec)


def wrong_gradient(q, k, v, *rest):
    """Right values; the gradient of the keys is twice too large."""
    once = dense_attention(q, k, v, *rest)
    twice = dense_attention(q, 2 * k - jax.lax.stop_gradient(k), v, *rest)
    return twice + jax.lax.stop_gradient(once - twice)


def not_compiling(*_):
    """As a compiler would."""
    raise NotImplementedError("no such instruction\nand pages more")


@pytest.mark.parametrize(
    ("attend", "said"),
    [
        (wrong_values, "values differ by"),
        (wrong_window, "values differ by"),
        (wrong_gradient, "dk differ by"),
        (not_compiling, "NotImplementedError: no such instruction"),
    ],
)
def test_a_wrong_kernel_gives_way_and_is_named(monkeypatch, attend, said):
    monkeypatch.setitem(BACKENDS, "pallas", attend)
    name, notice = settle_attention("auto", "tpu", Use(LOCAL, "float32", tokens=384))
    assert name == "tiled"
    assert notice.startswith("pallas attention is not used on this tpu, tiled instead: ")
    assert said in notice
    assert "\n" not in notice


def test_the_way_that_others_fall_back_to_agrees():
    assert fault(tiled_attention, dataclasses.replace(USE, config=LOCAL)) is None
