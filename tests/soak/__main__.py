"""The campaigns, whole: `make soak`. What came of them is kept in tests/soak/results.

    python -m tests.soak                 all, about 20 minutes
    python -m tests.soak damage          one of them
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from common.checkpoint.files import write_text
from common.claims.command import finish
from common.claims.origin import origin_of
from common.claims.render import console
from tests.soak import damage, kills

RESULTS = Path(__file__).parent / "results"
CAMPAIGNS = {"kills": (kills.campaign, 30), "damage": (damage.campaign, 200)}
SEED = 20


def well(outcome: Any) -> bool:
    """Whether a run or a case ended as it must."""
    if isinstance(outcome, kills.Outcome):
        return outcome.killed and outcome.alike and outcome.status == 0 and outcome.seconds < 10
    return outcome.named and outcome.fallen_back


def run(name: str) -> list[str]:
    """Runs a campaign, stores it, and returns what failed."""
    campaign, count = CAMPAIGNS[name]
    with tempfile.TemporaryDirectory() as folder:
        outcomes = list(_shown(campaign(Path(folder), count, SEED), name, count))
    origin = asdict(origin_of(f"python -m tests.soak {name}"))
    rows = [asdict(outcome) | {"well": well(outcome)} for outcome in outcomes]
    write_text(RESULTS / f"{name}.json", json.dumps({"origin": origin, "outcomes": rows}, indent=1) + "\n")
    failed = [str(outcome) for outcome in outcomes if not well(outcome)]
    table = Table("campaign", "cases", "well", "worst seconds to notice")
    slowest = max((outcome.seconds for outcome in outcomes if isinstance(outcome, kills.Outcome)), default=None)
    table.add_row(name, str(count), str(count - len(failed)), "" if slowest is None else f"{slowest:.2f}")
    console().print(table)
    return failed


def _shown(outcomes: Iterator[Any], name: str, count: int) -> Iterator[Any]:
    for number, outcome in enumerate(outcomes, start=1):
        if isinstance(outcome, kills.Outcome) or number % 20 == 0:
            print(f"{name} {number} of {count}: {outcome if not well(outcome) else 'well'}", file=sys.stderr, flush=True)
        yield outcome


def work(names: list[str]) -> list[str]:
    if unknown := [name for name in names if name not in CAMPAIGNS]:
        raise ValueError(f"campaign {unknown[0]!r} is unknown: use one of {', '.join(CAMPAIGNS)}")
    return [failed for name in names or CAMPAIGNS for failed in run(name)]


if __name__ == "__main__":
    finish(lambda: work(sys.argv[1:]))
