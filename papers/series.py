"""All published times and rates that are predicted, paper by paper."""

from papers.interleaved_pipelining.predicted import PREDICTED as interleaved_pipelining
from papers.mt_nlg.predicted import PREDICTED as mt_nlg
from papers.sequence_parallelism.predicted import PREDICTED as sequence_parallelism

ALL = (interleaved_pipelining, sequence_parallelism, mt_nlg)
