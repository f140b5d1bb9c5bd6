"""Trains a recipe of this paper: python -m papers.interleaved_pipelining.train RECIPE [--key value ...]"""

from common.training.command import main
from papers.interleaved_pipelining import recipes

if __name__ == "__main__":
    main(recipes)
