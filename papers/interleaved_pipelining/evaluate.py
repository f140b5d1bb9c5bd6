"""Held-out loss of a trained recipe: python -m papers.interleaved_pipelining.evaluate RECIPE --checkpoint runs/<id>"""

from evals.held_out import main
from papers.interleaved_pipelining import recipes

if __name__ == "__main__":
    main(recipes)
