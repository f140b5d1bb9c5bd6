"""Produces the tables of arXiv:2201.11990: python -m papers.mt_nlg.reproduce [CLAIM ...]"""

from pathlib import Path

from common.claims import Paper, Waits, main
from papers.mt_nlg import predicted

PAPER = Paper(
    Path(__file__).parent,
    producers=predicted.PRODUCERS,
    waits=(
        Waits(("data-books3", "data-openwebtext2", "data-stackexchange", "data-pubmed-abstracts", "data-wikipedia",
               "data-gutenberg-pg19", "data-bookcorpus2", "data-nih-exporter", "data-pile-cc", "data-arxiv", "data-github",
               "data-cc-*", "data-realnews", "data-table-sums", "data-set-list", "curation-*", "decontamination-*", "token-budget"), "cluster", "data curation and blending"),
        Waits(("eval-*", "hans-*", "bias-occupation-gender"), "one-gpu", "benchmark evaluation"),
        Waits(("memory-*", "batch-ceiling-argument", "model-architecture"), "exact", "traces of the whole model"),
        Waits(("validation-loss-trajectory",), "measured", "training runs at laptop scale"),
    ),
    context=("model-vocab-padded", "parallelism-degrees", "data-parallel-degrees", "hardware-selene",
             "topology-mapping-priority", "optimizer-adam", "beta2-lowered", "learning-rate-schedule", "batch-ramp",
             "init-std", "bias-no-countermeasure", "qualitative-abilities", "throughput-280-nodes/third_party_*"),
)

if __name__ == "__main__":
    main(PAPER)
