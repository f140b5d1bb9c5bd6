"""Trains a recipe of this paper: python -m papers.mt_nlg.train RECIPE [--key value ...]"""

from common.training.command import main
from papers.mt_nlg import recipes

if __name__ == "__main__":
    main(recipes)
