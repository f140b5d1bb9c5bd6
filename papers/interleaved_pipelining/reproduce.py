"""The tables and figures of arXiv:2104.04473, published beside ours.

    python -m papers.interleaved_pipelining.reproduce                           everything, under a minute
    python -m papers.interleaved_pipelining.reproduce eq-flops-iteration/gpt3   one number
    python -m papers.interleaved_pipelining.reproduce "Figure 6"                one figure
"""

from pathlib import Path

from common.claims import Paper, main
from common.claims.readme import contradiction_table, waiting_table
from papers.interleaved_pipelining import (
    bubbles,
    checkpoint_size,
    executor_bubble,
    executor_figures,
    figures_and_text,
    layouts,
    messages,
    microbatches,
    parameters,
    predicted,
    printed,
    recomputation,
    tables,
    trade_offs,
    wire_bytes,
    work,
)
from papers.interleaved_pipelining.figures import FIGURES

EXACT = (parameters, work, bubbles, microbatches, messages, recomputation, checkpoint_size)
DERIVED = (printed, figures_and_text)
MEASURED = (executor_bubble, layouts, wire_bytes, trade_offs)

INPUTS = ("heads", "hidden", "layers", "tp", "pp", "dp", "pipeline_parallel", "data_parallel", "model_parallel",
          "gpus", "global_batch", "micro_batch", "tokens_billion")
"""What a row or a curve was run with: recipes take it from here, it is no result."""

PAPER = Paper(
    Path(__file__).parent,
    producers=tuple(producer for module in (*EXACT, *DERIVED, *MEASURED, predicted) for producer in module.PRODUCERS),
    context=(*(f"*/{key}" for key in INPUTS), "setup-cluster", "setup-peak", "setup-vocab", "setup-seq",
             "setup-precision", "setup-throughput-definition", "setup-script-*", "eq-iterations", "figure1-models",
             "figure3-example", "figure4-example", "text-deepspeed-compare", "text-gpt3-batch", "text-data-layout",
             "text-zero-infinity-years", "text-checkpoint-read", "text-checkpoint-write"),
    figures=(*FIGURES, executor_figures.FIGURE, layouts.FIGURE),
    blocks={
        "models": tables.models,
        "days": tables.days,
        "executor": executor_figures.block,
        "layouts": layouts.block,
        "contradictions": contradiction_table,
        "waiting": waiting_table,
    },
)

if __name__ == "__main__":
    main(PAPER)
