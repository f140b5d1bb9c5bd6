"""Trains a recipe of this paper: python -m papers.sequence_parallelism.train RECIPE [--key value ...]"""

from common.training.command import main
from papers.sequence_parallelism import recipes

if __name__ == "__main__":
    main(recipes)
