"""Values sent between the launcher and its ranks arrive equal, tensors as copies that own their memory."""

import math
import pickle
from dataclasses import dataclass

import numpy
import pytest
import torch
from torch.nn import Parameter

from infra import messages
from infra.launch import run_local
from tests.infra import rank_functions as functions

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool,
          torch.complex64, torch.float8_e4m3fn]


@dataclass(frozen=True)
class Named:
    name: str
    values: dict


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_tensors_keep_dtype_shape_and_bits(dtype, shape):
    sent = torch.randint(0, 2, shape).to(dtype)
    got = messages.loads(messages.dumps(sent))
    assert (got.dtype, got.shape, got.requires_grad) == (dtype, shape, False)
    assert got.reshape(-1).view(torch.uint8).tolist() == sent.reshape(-1).view(torch.uint8).tolist()


def test_special_values_keep_their_bits():
    sent = torch.tensor([math.nan, -0.0, math.inf, 5e-324], dtype=torch.float64)
    got = messages.loads(messages.dumps(sent))
    assert got.view(torch.int64).tolist() == sent.view(torch.int64).tolist()


def test_a_view_sends_what_it_shows_and_not_its_storage():
    whole = torch.arange(1_000_000)
    data = messages.dumps(whole[10:20].reshape(2, 5).t())
    assert len(data) < 1000
    assert torch.equal(messages.loads(data), torch.arange(10, 20).reshape(2, 5).t())
    assert len(pickle.dumps(whole[10:20])) > 1_000_000  # what it is written against


def test_parameters_and_results_of_a_computation_arrive_as_leaves():
    weight, frozen = Parameter(torch.ones(2)), Parameter(torch.ones(2), requires_grad=False)
    got_weight, got_frozen, product = messages.loads(messages.dumps([weight, frozen, weight * 2]))
    assert type(got_weight) is Parameter and got_weight.requires_grad
    assert type(got_frozen) is Parameter and not got_frozen.requires_grad
    assert product.is_leaf and product.requires_grad and product.tolist() == [2.0, 2.0]


def test_a_tensor_that_is_met_twice_is_one_tensor():
    tensor = torch.ones(3)
    first, second = messages.loads(messages.dumps([tensor, tensor]))
    assert first is second


def test_nested_values_pass_through_a_rank_and_back():
    value = Named("x", {"a": [torch.arange(3.0), None], "b": (numpy.eye(2), 1.5, "text")})
    for got in run_local(functions.echo, 2, value):
        assert got.name == "x" and got.values["a"][1] is None and got.values["b"][1:] == (1.5, "text")
        assert torch.equal(got.values["a"][0], torch.arange(3.0))
        assert numpy.array_equal(got.values["b"][0], numpy.eye(2))


def test_large_values_pass_through_a_rank_and_back():
    value = torch.arange(4_000_000)
    assert torch.equal(run_local(functions.echo, 1, value)[0], value)
