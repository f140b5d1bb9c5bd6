"""The tables and figures of arXiv:2205.05198, published beside ours.

    python -m papers.sequence_parallelism.reproduce                     everything, about a minute
    python -m papers.sequence_parallelism.reproduce table2-tp/22b       one number
    python -m papers.sequence_parallelism.reproduce "Figure 7"          one figure
"""

from pathlib import Path

from common.claims import Paper, main
from common.claims.readme import contradiction_table, waiting_table
from papers.sequence_parallelism import (
    contradictions,
    first_stage,
    held_out,
    live_memory,
    live_outputs,
    memory,
    messages,
    micro_batch_windows,
    outside_layers,
    predicted,
    printed_times,
    rank_memory,
    shares,
    stage_memory,
    terms,
    timing,
    utilisation,
    work,
)
from papers.sequence_parallelism.figures import FIGURES
from papers.sequence_parallelism.pipeline_figures import PIPELINE_FIGURES

EXACT = (memory, shares, outside_layers, rank_memory, first_stage, stage_memory, micro_batch_windows, work, messages)
DERIVED = (utilisation, printed_times, contradictions)
MEASURED = (live_memory, live_outputs, timing)

PAPER = Paper(
    Path(__file__).parent,
    producers=tuple(producer for module in (*EXACT, *DERIVED, *MEASURED, predicted) for producer in module.PRODUCERS),
    context=("setup-*", "table1-notation", "table3-*", "eq-mfu", "comm-related-sagemaker",
             "figure1-*/gpu_memory_line_gb", "figure9-*/pipeline_rank",
             "figure10-example/pp", "figure10-example/microbatches"),
    figures=(*PIPELINE_FIGURES, *FIGURES, held_out.FIGURE),
    blocks={
        "figure1": terms.figure1,
        "terms": terms.equations,
        "windows": terms.windows,
        "contradictions": contradiction_table,
        "waiting": waiting_table,
        "held_out": held_out.block,
    },
)  # fmt: skip

if __name__ == "__main__":
    main(PAPER)
