"""Held-out loss of a trained recipe: python -m papers.mt_nlg.evaluate RECIPE --checkpoint runs/<id>"""

from evals.held_out import main
from papers.mt_nlg import recipes

if __name__ == "__main__":
    main(recipes)
