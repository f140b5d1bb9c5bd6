import math
from dataclasses import replace

import pytest
import torch

from common.kernels import dropout as module
from common.kernels.dropout import (
    Site,
    attention_mask_BNQK,
    dropout,
    dropout_add,
    hidden_mask_SBH,
    scale,
    threshold,
)
from common.models.config import LanguageModelConfig
from common.random import fill_random_bytes
from tests.common.kernels.agreement import TOLERANCE, agree, normal

SITE = Site(seed=1, step=2, samples=(10, 11, 12), layer=3, name="mlp")
P = 0.3


def hidden(site=SITE, p=P, length=600, width=7, first=0, total=None):
    shape = torch.Size((length, len(site.samples), width))
    return hidden_mask_SBH(site, p, shape, first, length if total is None else total, "cpu")


def attention(site=SITE, p=P, heads=3, length=300, first_head=0):
    return attention_mask_BNQK(
        site, p, torch.Size((len(site.samples), heads, length, length)), first_head, "cpu"
    )


def within_binomial(mask, p):
    """Kept elements within five standard deviations of what the rate gives."""
    rate, n = threshold(p) / 256, mask.numel()
    return abs(int(mask.sum()) - n * (1 - rate)) <= 5 * math.sqrt(n * rate * (1 - rate))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9, 0.999])
def test_rate(p):
    """Over the whole mask, each sample and each head; the rate is p to the nearest 1/256."""
    assert abs(threshold(p) / 256 - p) <= 1 / 256
    whole = hidden(p=p, width=64)
    assert whole.dtype == torch.bool and whole.shape == (600, 3, 64)
    assert within_binomial(whole, p) and all(within_binomial(whole[:, b], p) for b in range(3))
    heads = attention(p=p)
    assert heads.dtype == torch.bool and heads.shape == (3, 3, 300, 300)
    assert all(within_binomial(heads[b, n], p) for b in range(3) for n in range(3))


def test_bytes_are_uniform_at_every_place_of_a_word():
    """Chi-square of each of the eight bytes and of the bits: the top bit too is random."""
    words = torch.empty(1 << 16, dtype=torch.int64)
    fill_random_bytes(words, 99)
    bytes_ = words.view(torch.uint8).view(-1, 8)
    for place in range(8):
        counts = torch.bincount(bytes_[:, place].int(), minlength=256).double()
        chi_square = ((counts - 256) ** 2 / 256).sum()
        assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)


@pytest.mark.parametrize("width", [1, 5, 7, 8, 64], ids="width {}".format)
@pytest.mark.parametrize("total", [1, 255, 256, 257, 600])
def test_any_cut_of_the_tokens_gives_the_same_mask(total, width):
    """Ranks that hold a few tokens, more than a block, or parts of blocks draw their rows of the one mask."""
    whole = hidden(length=total, width=width)
    for parts in (2, 3, 4, 7):
        borders = [total * i // parts for i in range(parts + 1)]
        cuts = [hidden(length=b - a, width=width, first=a, total=total)
                for a, b in zip(borders, borders[1:], strict=False) if b > a]
        assert torch.equal(torch.cat(cuts), whole)


def test_any_split_of_the_heads_gives_the_same_mask():
    whole = attention(heads=6)
    for parts in (2, 3, 6):
        each = 6 // parts
        assert torch.equal(
            torch.cat([attention(heads=each, first_head=i * each) for i in range(parts)], 1), whole
        )


@pytest.mark.parametrize("samples", [(12,), (12, 10), (5, 11, 12, 4)])
def test_a_sample_takes_its_mask_along(samples):
    """Whatever micro-batch it is in and wherever in it."""
    site = replace(SITE, samples=samples)
    for i, sample in enumerate(samples):
        if sample in SITE.samples:
            at = SITE.samples.index(sample)
            assert torch.equal(hidden(site)[:, i], hidden()[:, at])
            assert torch.equal(attention(site)[i], attention()[at])


def test_drawing_again_gives_the_same_mask_whatever_was_drawn_between():
    first, of_heads = hidden(), attention()
    torch.manual_seed(5)
    torch.rand(10)
    state = torch.get_rng_state()
    assert torch.equal(hidden(), first) and torch.equal(attention(), of_heads)
    assert torch.equal(torch.get_rng_state(), state)  # and leaves torch's own generator alone


def uncorrelated(a, b):
    """Correlation of two masks within five of its standard deviations."""
    a, b = a.double().flatten(), b.double().flatten()
    return abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 5 / math.sqrt(a.numel())


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"step": 3},
        {"samples": (13, 14, 15)},
        {"samples": (11, 12, 10)},
        {"layer": 4},
        {"layer": -1},
        {"name": "attention"},
        {"seed": 2, "step": 1},
        {"step": 3, "layer": 2},
    ],
)
def test_what_is_dropped_elsewhere_has_nothing_to_do_with_it(change):
    other = replace(SITE, **change)
    assert uncorrelated(hidden(), hidden(other))
    assert uncorrelated(attention(), attention(other))


def test_blocks_samples_and_heads_are_independent():
    tokens = hidden(length=768, width=16)
    assert uncorrelated(tokens[:256], tokens[256:512]) and uncorrelated(tokens[256:512], tokens[512:])
    assert uncorrelated(tokens[:, 0], tokens[:, 1])
    assert uncorrelated(tokens[:-1], tokens[1:]) and uncorrelated(tokens[..., :-1], tokens[..., 1:])
    heads = attention()
    assert uncorrelated(heads[:, 0], heads[:, 1]) and uncorrelated(heads[0], heads[1])
    assert uncorrelated(heads[:, :, :256], heads[:, :, 44:])
    same = replace(SITE, name="attention")
    assert uncorrelated(attention(same)[:, 0].transpose(0, 1), hidden(same, length=300, width=300))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("p", [0.1, 0.999])
def test_values_and_gradients(p, dtype):
    """What is kept is scaled by 1 / (1 - rate), so that the mean stays; backward uses the mask of forward."""
    keep = hidden(p=p)
    x, residual = normal(600, 3, 7), normal(600, 3, 7, seed=2)
    rate = threshold(p) / 256
    assert scale(p) == 1 / (1 - rate)
    agree(lambda x: dropout(x, keep, p, "test"), lambda x: x * keep / (1 - rate), [x], dtype)
    agree(
        lambda x, r: dropout_add(x, r, keep, p, "test"),
        lambda x, r: r + x * keep / (1 - rate),
        [x, residual],
        dtype,
    )
    leaf = x.to(dtype).requires_grad_()
    out = dropout(leaf, keep, p, "test")
    out.sum().backward()
    assert torch.equal(leaf.grad != 0, keep) and torch.equal(out != 0, keep)


def test_mean_is_kept():
    x = torch.ones(600, 3, 64, dtype=torch.float64)
    for p in (0.1, 0.5):
        rate = threshold(p) / 256
        spread = math.sqrt(rate / (1 - rate) / x.numel())
        assert abs(dropout(x, hidden(p=p, width=64), p, "test").mean() - 1) < 5 * spread


@pytest.mark.parametrize("add", [False, True])
def test_results_and_gradients_lie_in_memory_as_their_inputs_do(add):
    """Masks of several samples do not, and a gradient that lay as they do would be copied by the next product."""
    x = torch.randn(6, 3, 8, requires_grad=True)
    keep = hidden_mask_SBH(SITE, 0.25, x.shape, 0, 6, "cpu")
    assert not keep.is_contiguous()
    y = dropout_add(x, x.detach(), keep, 0.25, "m") if add else dropout(x, keep, 0.25, "m")
    y.backward(torch.randn(6, 3, 8))
    assert y.is_contiguous() and x.grad.is_contiguous()


def test_no_dropout_keeps_all():
    assert threshold(0) == 0 and scale(0) == 1
    assert hidden(p=0.0).all()
    x = normal(600, 3, 7)
    assert torch.equal(dropout(x, hidden(p=0.0), 0.0, "test"), x)


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, math.nan])
def test_rates_out_of_range(p):
    with pytest.raises(ValueError, match="dropout="):
        threshold(p)
    with pytest.raises(ValueError, match="dropout="):
        LanguageModelConfig(dropout=p)


def test_a_rate_too_small_to_drop_anything_is_refused():
    with pytest.raises(ValueError, match="drops nothing.*at least 0.002"):
        LanguageModelConfig(attention_dropout=0.001)
    assert threshold(0.002) == 1


def test_gradcheck():
    keep = torch.rand(3, 2, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    x, residual = normal(3, 2, 5).requires_grad_(), normal(3, 2, 5, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: dropout(x, keep, 0.5, "test"), x)
    assert torch.autograd.gradcheck(lambda x, r: dropout_add(x, r, keep, 0.5, "test"), (x, residual))


def test_blocks_are_drawn_only_where_needed(monkeypatch):
    """A rank with tokens 300 .. 400 of 4096 draws one block of 256 rows, not the sequence."""
    drawn = []

    def counting(words, seed):
        drawn.append(words.numel() * 8)
        return fill_random_bytes(words, seed)

    monkeypatch.setattr(module, "fill_random_bytes", counting)
    hidden(replace(SITE, samples=(1,)), length=100, width=8, first=300, total=4096)
    assert drawn == [256 * 8]
