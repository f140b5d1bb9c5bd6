"""Held-out loss of a trained recipe: python -m papers.sequence_parallelism.evaluate RECIPE --checkpoint runs/<id>"""

from evals.held_out import main
from papers.sequence_parallelism import recipes

if __name__ == "__main__":
    main(recipes)
