"""The saved-bytes meter against tensors that are alive in a real forward and backward."""

import pytest
import torch

from common.layers.context import Context
from common.layout import SERIAL
from common.models.config import LanguageModelConfig
from common.models.language_model import LanguageModel
from common.models.record import Record
from common.parallel.gradients import Gradients
from common.parameters import initialise
from common.recompute.meter import measuring
from common.trace.live import Live

LAYERS, B, S, H = 4, 2, 128, 64
CONFIG = LanguageModelConfig(pattern=f"[*-]*{LAYERS + 2}", hidden=H, heads=4, sequence=S, dropout=0.1,
                             attention_dropout=0.1)
STREAM = S * B * H * 4  # bytes of one fp32 residual stream
SCORES = 4 * S * S * B  # elements
POLICIES = ["none", "norm", "activation", "norm,activation", "selective", "attention.core,norm,activation",
            "full:2", "full"]


def run(recompute: str) -> tuple[int, int, int]:
    """One real step of the middle layers: bytes the meter counts, bytes alive after forward, peak over both
    passes.

    The input stream, made before, is added to what is alive; the output, which is not kept for backward, is
    taken off.
    """
    model = LanguageModel(CONFIG, Context(kernels="paper"), recompute, 1, LAYERS + 1)
    initialise(model, SERIAL, 0)
    Gradients([model], SERIAL)
    zeros = torch.zeros(B, S, dtype=torch.int64)
    record = Record(zeros, zeros, zeros == 0, zeros, samples=(0, 1))
    x = torch.randn(S, B, H, requires_grad=True)
    with Live() as live:
        with measuring(model) as meter:
            y = model(record, {"hidden": x})[0]["hidden"]
        alive = live.bytes - y.nbytes + x.nbytes
        y.backward(torch.ones_like(y))
        return meter.total, alive, live.peak + x.nbytes


@pytest.mark.parametrize("recompute", POLICIES)
def test_what_the_meter_counts_is_what_is_alive_after_forward(recompute):
    """To the byte: nothing else stays, and nothing counted is gone."""
    counted, alive, _ = run(recompute)
    assert counted == alive > 0


@pytest.mark.parametrize("recompute", POLICIES)
def test_the_peak_is_what_is_kept_and_one_layer_made_again(recompute):
    """Above what is kept stand what one layer makes again and the pass's own temporaries.

    Temporaries are known: output, its gradient and the gradient of the residual stream (3 streams), and the
    widest working set beside them, the MLP's two inner gradients (4 streams each). The scores' gradients need
    no room of their own: they come when the same layer's MLP tensors are gone.
    """
    counted, _, peak = run(recompute)
    sites = {"selective": "attention.core", "full": "layer", "full:2": "none"}.get(recompute, recompute)
    again = {"attention.core": SCORES * (4 + 1 + 4), "activation": 4 * STREAM, "norm": STREAM,
             "layer": run("none")[0] // LAYERS - STREAM, "none": 0}
    made = max(again[site] for site in sites.split(","))
    assert counted + made <= peak <= counted + made + (3 + 2 * 4) * STREAM


def test_policies_order_as_they_promise():
    peaks = [run(p)[2] for p in ("none", "norm,activation", "selective", "full")]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0] / 3


def test_live_follows_storages_not_tensors():
    weight = torch.ones(10)
    with Live() as live:
        a = torch.zeros(100)
        b = a.view(10, 10)[:5]
        weight.mul_(2)
        outside = weight[:5]
        assert live.bytes == 400
        del a
        assert live.bytes == 400  # the view keeps the whole
        c = b + 1
        assert live.bytes == live.peak == 600
        del b
        assert live.bytes == 200 and live.peak == 600
        assert live.mark() == 600 and live.peak == 200
        c.relu_()
        assert live.bytes == live.peak == 200
    del outside
    assert live.bytes == 200
