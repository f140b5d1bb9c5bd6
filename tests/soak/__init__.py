"""Long campaigns of faults: `make soak` runs them whole and stores what came of them, the test suite a tenth of each."""
