"""Schedules of every kind, drawn at random, and what their actions cost."""

from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st

from common.pipeline.schedule import Schedule
from common.pipeline.schedules import forward_only, gpipe, interleaved, one_f_one_b, zb_h1

quick = settings(max_examples=60, deadline=None)
ranks = st.integers(1, 16)
chunks = st.integers(1, 4)
micro_batches = st.integers(1, 40)
rounds = st.integers(1, 4)
times = st.one_of(st.integers(1, 7), st.fractions(Fraction(1, 5), 4, max_denominator=6))


@st.composite
def interleavings(draw, p=ranks, v=chunks, rounds=rounds) -> Schedule:
    p = draw(p)
    return interleaved(p, draw(v), p * draw(rounds))


training = st.one_of(
    st.builds(gpipe, ranks, micro_batches),
    st.builds(one_f_one_b, ranks, micro_batches),
    st.builds(zb_h1, ranks, micro_batches),
    interleavings(),
)
schedules = st.one_of(training, st.builds(forward_only, ranks, micro_batches, chunks))
