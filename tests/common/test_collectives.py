"""Differentiable collectives on real ranks against plain torch on the whole tensors."""

import pytest
import torch

from common import collectives
from common.grid import Grid
from common.layout import SERIAL, Layout
from tests.distributed import ranks

SIZE = 3


def whole(rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


def _run(context, name, shape):
    group = Layout(Grid(tp=SIZE), context.rank).group("tp")
    x = whole(context.rank, *shape).requires_grad_()
    y = getattr(collectives, name)(x, group)
    before = x.detach().clone()
    y.backward(whole(100 + context.rank, *y.shape))
    return y.detach(), x.grad, bool((x.detach() == before).all())


@pytest.mark.parametrize("name", ["copy_to", "reduce_from", "gather_sequence", "scatter_sum"])
def test_forward_and_backward(name):
    shape = (6, 2, 5)
    found = ranks(SIZE, _run, name, shape)
    xs = [whole(r, *shape) for r in range(SIZE)]
    outputs = {"copy_to": xs, "reduce_from": [sum(xs)] * SIZE, "gather_sequence": [torch.cat(xs)] * SIZE,
               "scatter_sum": list(sum(xs).chunk(SIZE))}[name]
    grads = [whole(100 + r, *outputs[r].shape) for r in range(SIZE)]
    inputs = {"copy_to": [sum(grads)] * SIZE, "reduce_from": grads,
              "gather_sequence": list(sum(grads).chunk(SIZE)) if name == "gather_sequence" else None,
              "scatter_sum": [torch.cat(grads)] * SIZE}[name]
    for (y, gradient, untouched), expected, wanted in zip(found, outputs, inputs, strict=True):
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(gradient, wanted)
        assert untouched


@pytest.mark.parametrize("name", ["copy_to", "reduce_from", "gather_sequence", "scatter_sum", "all_reduce", "all_gather",
                                  "reduce_scatter", "local_slice"])
def test_a_group_of_one_gives_the_input_back(name):
    x = whole(0, 4, 3)
    y = getattr(collectives, name)(x, SERIAL.group("tp"))
    assert y.data_ptr() == x.data_ptr() and y.shape == x.shape


def _uneven(context, name):
    getattr(collectives, name)(torch.zeros(4, 2), Layout(Grid(tp=SIZE), context.rank).group("tp"))


@pytest.mark.parametrize("name", ["reduce_scatter", "local_slice"])
def test_a_dim_that_does_not_divide_is_refused(name):
    with pytest.raises(Exception, match="does not divide by the 3 ranks of group tp"):
        ranks(SIZE, _uneven, name)
